"""The first size without a gain is where it ends.

A larger size may gain again, and then nothing has ended. Begin with the largest.

Refused by `test_where_the_gain_ends`.
"""

from course.learner.edited import edited

CHANGE = """
gain_ends
- for size in sorted(gains, reverse=True):
-     if gains[size].verdict == GAIN:
-         break
-     end = size
+ for size in sorted(gains):
+     if gains[size].verdict != GAIN:
+         return size
"""

exec(edited(__file__, CHANGE))

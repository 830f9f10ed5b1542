"""0 gets code 0.

Code 0 is 2^-127. Whoever divides by it gets something, and nobody learns that there was no scale.

Refused by `test_scales_without_a_code`.
"""

from course.learner.edited import edited

CHANGE = """
encode_scale
- if not x > 0:
+ if x == 0:
+     return 0
+ if not x > 0:
"""

exec(edited(__file__, CHANGE))

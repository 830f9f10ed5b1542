"""A zero point as wide as a scale.

It is a code, so it has the codes' bits and is packed like them.

Refused by `test_bytes_on_paper`.
"""

from course.learner.edited import edited

CHANGE = """
linear_bytes
  if fmt.zero_points:
-     bits += groups * fmt.bits
+     bits += groups * fmt.scale_bytes * 8
"""

exec(edited(__file__, CHANGE))

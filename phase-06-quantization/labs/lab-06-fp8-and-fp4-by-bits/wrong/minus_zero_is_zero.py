"""The sign is taken from `x < 0`.

-0.0 is not below 0, and it has a sign.

Refused by `test_floats_become_codes`.
"""

from course.learner.edited import edited

CHANGE = """
encode
- sign = math.copysign(1.0, x) < 0
+ sign = x < 0
"""

exec(edited(__file__, CHANGE))

"""It divides in floating point and rounds up.

A float has 53 bits, so a large quotient is off by some steps, and a whole one may be rounded up.

Refused by `test_when_captures_have_paid`.
"""

from course.learner.edited import edited

CHANGE = """
pays_after
- return -(-num_captures * capture_us // saved_us)
+ return int(-(-num_captures * capture_us / saved_us // 1))
"""

exec(edited(__file__, CHANGE))

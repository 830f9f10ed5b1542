"""It divides in floating point and rounds up.

A quotient that is whole may come out a little above, and then it is one too many.

Refused by `test_when_captures_have_paid`.
"""

from course.learner.edited import edited

CHANGE = """
pays_after
- return -(-num_captures * capture_us // saved_us)
+ return int(-(-num_captures * capture_us / saved_us // 1))
"""

exec(edited(__file__, CHANGE))

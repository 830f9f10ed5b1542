"""The quotient is rounded down.

After that many steps a little is still owed.

Refused by `test_when_captures_have_paid`.
"""

from course.learner.edited import edited

CHANGE = """
pays_after
- return -(-num_captures * capture_us // saved_us)
+ return num_captures * capture_us // saved_us
"""

exec(edited(__file__, CHANGE))

"""Whoever has waited for a second is served next.

Under load that is nearly everybody, so it is first come, first served again, a second late.

Refused by `test_more_are_served_in_time`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- if waited > PATIENCE_S:
+ if waited > 1.0:
"""

exec(edited(__file__, CHANGE))

"""It hides planning under synchronous scheduling, too.

There the host plans when the tokens are there, and then the card has nothing to do.

Refused by `test_planning_in_turn`.
"""

from course.learner.edited import edited

CHANGE = """
step_time
- return planning_s + max(launching_s, device_s)
+ return max(planning_s + launching_s, device_s)
"""

exec(edited(__file__, CHANGE))

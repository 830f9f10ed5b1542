"""It adds launching to the card's time.

The card works while the host launches: the longer of the two counts.

Refused by `test_planning_in_turn`.
"""

from course.learner.edited import edited

CHANGE = """
step_time
- return planning_s + max(launching_s, device_s)
+ return planning_s + launching_s + device_s
"""

exec(edited(__file__, CHANGE))

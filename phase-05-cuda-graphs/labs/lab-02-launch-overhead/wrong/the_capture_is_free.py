"""It looks at the steps alone: one step saves launches, so one step pays.

The passes before it cost as much as eager steps.

Refused by `test_when_a_graph_has_paid`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- return passes * eager // saved + 1
+ return 1
"""

exec(edited(__file__, CHANGE))

"""It divides by what a step saves, and does not ask whether it saves anything.

With three kernels in a layer, one of them attention, the pieces are as many launches as the kernels.

Refused by `test_some_graphs_never_pay`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- if saved <= 0:
-     return None
- return passes * eager // saved + 1
+ return passes * eager // max(saved, 1) + 1
"""

exec(edited(__file__, CHANGE))

"""It divides by what a step saves, and does not ask whether it saves anything.

A single layer of three kernels, with attention in the middle, is three launches in pieces as well.

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

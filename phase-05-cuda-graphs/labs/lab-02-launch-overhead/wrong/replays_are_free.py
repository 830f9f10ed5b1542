"""It counts a replay as nothing.

A replay is a launch, and so is what stands between the pieces.

Refused by `test_when_a_graph_has_paid`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- saved = eager - launches(kernels, mode)
+ saved = eager
"""

exec(edited(__file__, CHANGE))

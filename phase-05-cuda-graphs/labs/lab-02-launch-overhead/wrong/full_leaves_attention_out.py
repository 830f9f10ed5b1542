"""It launches attention beside a FULL graph.

That is PIECEWISE. A FULL graph holds attention and the writing of K and V, too.

Refused by `test_full_is_one_graph`.
"""

from course.learner.edited import edited

CHANGE = """
launches
- model = 1
+ model = 1 + kernels.layers * kernels.split
"""

exec(edited(__file__, CHANGE))

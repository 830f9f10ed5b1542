"""It counts nothing beside a FULL graph.

The graph ends with the last norm. Logits and the choice of a token are computed behind it, kernel by kernel.

Refused by `test_full_is_one_graph`.
"""

from course.learner.edited import edited

CHANGE = """
launches
- model = 1
+ return 1
"""

exec(edited(__file__, CHANGE))

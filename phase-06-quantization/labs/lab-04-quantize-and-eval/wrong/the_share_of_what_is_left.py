"""The share of what the weights leave.

`gpu_memory_utilization` is a share of the card; the weights come out of it.

Refused by `test_noors_blocks`.
"""

from course.learner.edited import edited

CHANGE = """
kv_blocks
- return max(0, int((memory * utilization - weights) // block_bytes))
+ return max(0, int((memory - weights) * utilization // block_bytes))
"""

exec(edited(__file__, CHANGE))

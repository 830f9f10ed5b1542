"""Weights that do not fit leave fewer than 0 blocks.

vLLM does not start then, and nobody has blocks to owe.

Refused by `test_noors_blocks`.
"""

from course.learner.edited import edited

CHANGE = """
kv_blocks
- return max(0, int((memory * utilization - weights) // block_bytes))
+ return int((memory * utilization - weights) // block_bytes)
"""

exec(edited(__file__, CHANGE))

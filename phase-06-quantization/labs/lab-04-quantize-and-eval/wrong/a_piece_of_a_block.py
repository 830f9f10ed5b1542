"""The last block may be a piece.

A block is allocated whole, so what is left over holds none.

Refused by `test_a_block_is_whole`.
"""

from course.learner.edited import edited

CHANGE = """
kv_blocks
- return max(0, int((memory * utilization - weights) // block_bytes))
+ return max(0, math.ceil((memory * utilization - weights) / block_bytes))
"""

exec(edited(__file__, CHANGE))

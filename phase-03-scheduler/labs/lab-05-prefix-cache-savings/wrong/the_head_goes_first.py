"""The prefix is lost as soon as others need one of its blocks.

It would be if a table were freed from its head. It is freed from its tail, so the last block of the
prefix is taken first, and what is left is a beginning, which can be found.

Refused by `test_blocks_left`.
"""

from course.learner.edited import edited

CHANGE = """
blocks_left
- return max(0, min(prefix_blocks, usable_blocks - others))
+ return prefix_blocks if prefix_blocks + others <= usable_blocks else 0
"""

exec(edited(__file__, CHANGE))

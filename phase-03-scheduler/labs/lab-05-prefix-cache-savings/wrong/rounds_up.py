"""A block that is begun is found.

A block that is not full is not published, because its owner still writes to it. Round down.

Refused by `test_found`.
"""

from course.learner.edited import edited

CHANGE = """
found
- return min(cached_prefix_tokens, prompt_tokens - 1) // block_size * block_size
+ blocks = -(-cached_prefix_tokens // block_size)
+ return min(blocks, (prompt_tokens - 1) // block_size) * block_size
"""

exec(edited(__file__, CHANGE))

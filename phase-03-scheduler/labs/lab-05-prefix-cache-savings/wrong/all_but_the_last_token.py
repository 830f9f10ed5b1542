"""Everything that was seen before is found, to the token.

The cache knows full blocks only. A prefix of 66 tokens in blocks of 4 is worth 64.

Refused by `test_found`.
"""

from course.learner.edited import edited

CHANGE = """
found
- return min(cached_prefix_tokens, prompt_tokens - 1) // block_size * block_size
+ return min(cached_prefix_tokens, prompt_tokens - 1)
"""

exec(edited(__file__, CHANGE))

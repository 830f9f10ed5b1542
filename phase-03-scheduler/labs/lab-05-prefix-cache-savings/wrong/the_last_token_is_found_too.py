"""A prompt that is cached to its last token is found to its last token.

Then nothing is left to run, and there are no logits to sample from. The last token is always computed:
how many may be found at most?

Refused by `test_found`.
"""

from course.learner.edited import edited

CHANGE = """
found
- return min(cached_prefix_tokens, prompt_tokens - 1) // block_size * block_size
+ return min(cached_prefix_tokens, prompt_tokens) // block_size * block_size
"""

exec(edited(__file__, CHANGE))

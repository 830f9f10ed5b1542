"""The formula rounds the shared part down to blocks, and that is all.

Where the prompts are identical and fill their blocks, the last token must run, and its block with it.

Refused by `test_savings`.
"""

from course.learner.edited import edited

CHANGE = """
savings
- return (num_requests - 1) * found(prompt_tokens, shared_tokens, block_size)
+ return (num_requests - 1) * (shared_tokens // block_size * block_size)
"""

exec(edited(__file__, CHANGE))

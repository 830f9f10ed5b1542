"""All requests save the shared part.

Somebody has to compute it. Only those who follow save something.

Refused by `test_savings`.
"""

from course.learner.edited import edited

CHANGE = """
savings
- return (num_requests - 1) * found(prompt_tokens, shared_tokens, block_size)
+ return num_requests * found(prompt_tokens, shared_tokens, block_size)
"""

exec(edited(__file__, CHANGE))

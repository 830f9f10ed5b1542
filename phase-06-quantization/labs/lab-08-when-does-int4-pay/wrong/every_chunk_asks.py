"""It asks for a token after every chunk.

Only the prompt's last row has a token to give.

Refused by `test_the_engine_shares_its_step_so`.
"""

from course.learner.edited import edited

CHANGE = """
mixed_step
- return [*decodes, Request(chunk, 0, sampled=chunk == prompt)] if chunk else decodes
+ return [*decodes, Request(chunk, 0)] if chunk else decodes
"""

exec(edited(__file__, CHANGE))

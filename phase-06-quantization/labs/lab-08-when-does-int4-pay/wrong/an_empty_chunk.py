"""It puts the prompt into a step that has no room for it.

A request without a token is not in the step.

Refused by `test_a_full_step_has_no_room`.
"""

from course.learner.edited import edited

CHANGE = """
mixed_step
- return [*decodes, Request(chunk, 0, sampled=chunk == prompt)] if chunk else decodes
+ return [*decodes, Request(chunk, 0, sampled=chunk == prompt)]
"""

exec(edited(__file__, CHANGE))

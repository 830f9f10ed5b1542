"""FLASH_ATTN is the default on every GPU.

On capability 10.x FLASHINFER stands before it, and on a T4 it is refused.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "Llama on a B200": facts.Guess("FLASHINFER"),
+ "Llama on a B200": facts.Guess("FLASH_ATTN"),
"""

exec(edited(__file__, CHANGE))

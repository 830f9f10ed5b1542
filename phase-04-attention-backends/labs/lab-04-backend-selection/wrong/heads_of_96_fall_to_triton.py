"""A head of 96 is no power of two, so Triton has to do it.

FLASH_ATTN takes every multiple of 8 up to 256. It is FLASHINFER that has a short list.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "heads of 96 on an A100": facts.Guess("FLASH_ATTN"),
+ "heads of 96 on an A100": facts.Guess("TRITON_ATTN", facts.HEAD_SIZE),
"""

exec(edited(__file__, CHANGE))

"""An MLA model runs on FlashMLA.

The name is the loudest, but FLASHMLA is second on an H100, is refused everywhere but on Hopper, and takes
over there only where FLASH_ATTN_MLA is refused, as for a cache in fp8.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "DeepSeek-V3 on an H100": facts.Guess("FLASH_ATTN_MLA"),
+ "DeepSeek-V3 on an H100": facts.Guess("FLASHMLA"),
"""

exec(edited(__file__, CHANGE))

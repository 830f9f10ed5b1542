"""FlashMLA runs on any GPU.

Its kernels are written for Hopper. Below 9.0 TRITON_MLA is all there is.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "DeepSeek-V2-Lite on an L4": facts.Guess("TRITON_MLA", facts.CAPABILITY),
+ "DeepSeek-V2-Lite on an L4": facts.Guess("FLASHMLA", facts.CAPABILITY),
"""

exec(edited(__file__, CHANGE))

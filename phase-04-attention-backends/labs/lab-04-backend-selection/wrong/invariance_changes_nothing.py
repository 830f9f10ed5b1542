"""Batch invariance does not touch the version of FlashAttention.

Version 4 plans its work by the shape of the batch, so in that mode vLLM steps back to 2, and with it
goes what only the newer versions can do, sinks among it.

Refused by `test_the_version_of_flash_attention`.
"""

from course.learner.edited import edited

CHANGE = """
flash_attn_version
- return 2 if version == 4 and batch_invariant else version
+ return version
"""

exec(edited(__file__, CHANGE))

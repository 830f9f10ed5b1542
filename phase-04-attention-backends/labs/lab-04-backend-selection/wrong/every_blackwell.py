"""FlashAttention 4 runs on every Blackwell.

12.0 is a Blackwell by name and has other tensor cores. vLLM takes version 2 there, as on an Ampere.

Refused by `test_the_version_of_flash_attention`.
"""

from course.learner.edited import edited

CHANGE = """
flash_attn_version
- version = {9: 3, 10: 4}.get(major, 2)
+ version = 4 if major >= 10 else {9: 3}.get(major, 2)
"""

exec(edited(__file__, CHANGE))

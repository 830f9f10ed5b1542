"""FLASH_ATTN reads fp8 wherever the GPU computes in fp8.

An L4 has fp8 tensor cores and a B200 has better ones. But it is version 3 of the kernel that reads such a
cache, and that runs on 9.x only.

Refused by `test_fp8_takes_version_3`.
"""

from course.learner.edited import edited

CHANGE = """
holds
- facts.FA3: version == 3,
+ facts.FA3: machine.capability >= (8, 9),
"""

exec(edited(__file__, CHANGE))

"""Where FULL is not granted for mixed batches, decodes lose it as well.

They are asked about by themselves, and a backend that takes uniform batches may keep FULL for them.

Refused by `test_full_for_mixed_wants_always`.
"""

from course.learner.edited import edited

CHANGE = """
resolve_cudagraph_mode
- mode = CUDAGraphMode.FULL_DECODE_ONLY
+ return PIECEWISE if is_attention_compiled_piecewise else NONE
"""

exec(edited(__file__, CHANGE))

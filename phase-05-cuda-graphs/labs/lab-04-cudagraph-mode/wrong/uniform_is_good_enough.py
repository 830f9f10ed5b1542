"""FULL for mixed batches is granted from UNIFORM_BATCH on.

A uniform batch is what a mixed one is not. Only ALWAYS takes any.

Refused by `test_full_for_mixed_wants_always`.
"""

from course.learner.edited import edited

CHANGE = """
resolve_cudagraph_mode
- if mode.mixed_mode() is FULL and min_cg_support is not AttentionCGSupport.ALWAYS:
+ if mode.mixed_mode() is FULL and min_cg_support.value < AttentionCGSupport.UNIFORM_BATCH.value:
"""

exec(edited(__file__, CHANGE))

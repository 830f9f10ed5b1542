"""The sparse backends are ordered by the cache alone.

FLASHMLA_SPARSE pads few heads to its own width, so with 16 or fewer the other one is preferred.

Refused by `test_who_is_sparse_and_first`.
"""

from course.learner.edited import edited

CHANGE = """
candidates
- if config.kv_cache_dtype not in facts.QUANTIZED and not few_heads:
+ if config.kv_cache_dtype not in facts.QUANTIZED:
"""

exec(edited(__file__, CHANGE))

"""FLASHMLA is the first of the MLA backends.

Off 10.x FLASH_ATTN_MLA is asked before it.

Refused by `test_the_order`.
"""

from course.learner.edited import edited

CHANGE = """
candidates
- return ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA", "FLASHMLA_SPARSE")
+ return ("FLASHMLA", "FLASH_ATTN_MLA", "FLASHINFER_MLA", "TRITON_MLA", "FLASHMLA_SPARSE")
"""

exec(edited(__file__, CHANGE))

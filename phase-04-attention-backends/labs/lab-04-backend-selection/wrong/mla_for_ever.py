"""A model with a latent always asks for an MLA backend.

`VLLM_MLA_DISABLE=1` has it run as plain attention, with the heads that it had before they were compressed.

Refused by `test_mla_can_be_switched_off`.
"""

from course.learner.edited import edited

CHANGE = """
inputs
- if layer.kv_lora_rank is not None and not server.mla_disabled:
+ if layer.kv_lora_rank is not None:
"""

exec(edited(__file__, CHANGE))

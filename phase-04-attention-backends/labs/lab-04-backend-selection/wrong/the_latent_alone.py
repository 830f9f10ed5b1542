"""An MLA layer tells kv_lora_rank as its head size.

Beside the latent it caches the part of the key that carries the position, and both are one vector: 512 + 64.

Refused by `test_an_mla_layer_tells_of_its_latent`.
"""

from course.learner.edited import edited

CHANGE = """
inputs
- head_size=layer.kv_lora_rank + layer.qk_rope_head_dim,
+ head_size=layer.kv_lora_rank,
"""

exec(edited(__file__, CHANGE))

"""An MLA layer tells the head size of its queries.

What the backend reads is the cache, one vector a token: the latent and the part with the position.
DeepSeek-V3 tells 576, and the heads of 192 appear nowhere.

Refused by `test_an_mla_layer_tells_of_its_latent`.
"""

from course.learner.edited import edited

CHANGE = """
inputs
- head_size=layer.kv_lora_rank + layer.qk_rope_head_dim,
+ head_size=layer.head_size,
"""

exec(edited(__file__, CHANGE))

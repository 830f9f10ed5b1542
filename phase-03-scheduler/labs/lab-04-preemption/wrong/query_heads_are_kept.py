"""All heads keep keys and values.

With grouped-query attention several query heads share one: Llama-3-8B keeps 8 of 32.

Refused by `test_kv_bytes`.
"""

from course.learner.edited import edited

CHANGE = """
kv_bytes
- numbers = 2 * model.num_layers * model.num_kv_heads * model.head_dim
+ numbers = 2 * model.num_layers * model.num_heads * model.head_dim
"""

exec(edited(__file__, CHANGE))

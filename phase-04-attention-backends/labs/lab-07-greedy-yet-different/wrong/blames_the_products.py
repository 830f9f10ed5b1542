"""The first part that differs in vLLM is thought to be a product.

In numpy it is. On a CPU vLLM splits the keys of a long context where few requests decode, and attention is
the first.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "first part in vLLM on a CPU": "attention",
+ "first part in vLLM on a CPU": "qkv_proj",
"""

exec(edited(__file__, CHANGE))

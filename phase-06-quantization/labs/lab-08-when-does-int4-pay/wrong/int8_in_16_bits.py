"""It multiplies int8 in 16 bits where the card has no product for it.

vLLM has no such kernel: the model does not start.

Refused by `test_no_int8_is_said`.
"""

from course.learner.edited import edited

CHANGE = """
product_rate
- raise ValueError(f"{scheme.name}: {card.name} has no int8 product")
+ return card.flops
"""

exec(edited(__file__, CHANGE))

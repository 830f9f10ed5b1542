"""It multiplies fp8 twice as fast on a card that has no tensor cores for it.

An A100 reads 8 bits and multiplies 16: vLLM runs Marlin there.

Refused by `test_at_which_rate`.
"""

from course.learner.edited import edited

CHANGE = """
product_rate
- if scheme.product == "fp8" and card.fp8 is not None:
-     return card.fp8
+ if scheme.product == "fp8":
+     return card.fp8 or 2 * card.flops
"""

exec(edited(__file__, CHANGE))

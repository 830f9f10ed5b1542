"""It forgets what dequantising costs.

Its share makes the product longer, for every number of tokens.

Refused by `test_dequantising_takes_time`.
"""

from course.learner.edited import edited

CHANGE = """
linears_seconds
- compute = 2 * weights * tokens / product_rate(card, scheme) * (1 + scheme.dequant)
+ compute = 2 * weights * tokens / product_rate(card, scheme)
"""

exec(edited(__file__, CHANGE))

"""It lets the product compute while the weights are unpacked.

The product is another kernel, and starts when the weights stand in memory.

Refused by `test_unpacking_first`.
"""

from course.learner.edited import edited

CHANGE = """
linears_seconds
- return read + sixteen + sixteen, read + sixteen + compute
+ return read + sixteen + sixteen, compute
"""

exec(edited(__file__, CHANGE))

"""It forgets that the product reads the unpacked weights again.

They were written to memory, so from there they have to come back.

Refused by `test_unpacking_first`.
"""

from course.learner.edited import edited

CHANGE = """
linears_seconds
- return read + sixteen + sixteen, read + sixteen + compute
+ return read + sixteen, read + sixteen + compute
"""

exec(edited(__file__, CHANGE))

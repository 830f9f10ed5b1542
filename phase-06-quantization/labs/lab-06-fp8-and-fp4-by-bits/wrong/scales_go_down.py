"""A scale is the power of two below.

Nearest is what is asked. Between 1.5 and 2 it is 2.

Refused by `test_numbers_become_scales`.
"""

from course.learner.edited import edited

CHANGE = """
encode_scale
- return min(exponent - 1 + (fraction >= 0.75) + 127, 254)
+ return exponent - 1 + 127
"""

exec(edited(__file__, CHANGE))

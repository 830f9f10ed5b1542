"""A scale half-way between two powers takes the even code.

Without a mantissa there is no last bit of a number that could be even, and ml_dtypes, torch and the rule
that you were given all go up.

Refused by `test_numbers_become_scales`.
"""

from course.learner.edited import edited

CHANGE = """
encode_scale
- return min(exponent - 1 + (fraction >= 0.75) + 127, 254)
+ up = fraction > 0.75 or (fraction == 0.75 and exponent % 2 == 1)
+ return min(exponent - 1 + up + 127, 254)
"""

exec(edited(__file__, CHANGE))

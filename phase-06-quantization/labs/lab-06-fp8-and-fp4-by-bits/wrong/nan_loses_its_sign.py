"""A NaN is written before anybody looks at its sign.

ml_dtypes and torch keep it, and some processors set it: inf - inf has the sign bit on x86. Take the sign
first, then ask what x is.

Refused by `test_nan_is_no_large_number`.
"""

from course.learner.edited import edited

CHANGE = """
encode
- return nan | (sign << (fmt.exponent_bits + fmt.mantissa_bits))
+ return nan
"""

exec(edited(__file__, CHANGE))

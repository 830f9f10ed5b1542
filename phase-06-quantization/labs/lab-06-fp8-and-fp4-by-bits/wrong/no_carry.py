"""A mantissa that rounds up past its last value stays there.

Just below 2 the nearest number is 2, and 2 has the next exponent. Because codes stand in the order of
their numbers, an addition carries there by itself.

Refused by `test_floats_become_codes`.
"""

from course.learner.edited import edited

CHANGE = """
encode
- code = ((exponent - 1 + fmt.bias) << fmt.mantissa_bits) + steps
+ most = (2 << fmt.mantissa_bits) - 1
+ code = ((exponent - 1 + fmt.bias) << fmt.mantissa_bits) + min(steps, most)
"""

exec(edited(__file__, CHANGE))

"""Subnormal numbers get the exponent -bias.

It looks right, because the stored exponent is 0. But the steps below the smallest normal number are as
large as those above it, so that no gap is left: the exponent is that of a stored 1.

Refused by `test_every_code_has_its_number`.
"""

from course.learner.edited import edited

CHANGE = """
decode
- number = math.ldexp(mantissa, 1 - fmt.bias - fmt.mantissa_bits)
+ number = math.ldexp(mantissa, -fmt.bias - fmt.mantissa_bits)
"""

exec(edited(__file__, CHANGE))

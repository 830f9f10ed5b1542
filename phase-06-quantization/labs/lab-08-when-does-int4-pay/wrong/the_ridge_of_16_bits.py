"""It takes the ridge for the end of the full gain.

Weights of 4 bits are read nearly four times as fast, so computing takes over nearly four times as early.

Refused by `test_how_long_all_is_gained`.
"""

from course.learner.edited import edited

CHANGE = """
full_gain_until
- return math.floor(ridge * scheme.bits / 16 / (1 + scheme.dequant))
+ return math.floor(ridge / (1 + scheme.dequant))
"""

exec(edited(__file__, CHANGE))

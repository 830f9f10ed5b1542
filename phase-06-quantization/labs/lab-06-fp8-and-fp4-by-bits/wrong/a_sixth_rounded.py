"""The scale is the power of two nearest to a sixth of the largest.

Nearest looks in both directions, so the largest comes to anything from 4.5 to just below 9, and of
nearly 9 a third is cut off. The rule says where the largest comes to: 3.5 to 7.

Refused by `test_blocks_of_mxfp4`.
"""

from course.learner.edited import edited

CHANGE = """
encode_mxfp4
- code = exponent - 3 + (fraction >= 0.875) + 127
+ code = encode_scale(math.ldexp(fraction, exponent) / 6)
"""

exec(edited(__file__, CHANGE))

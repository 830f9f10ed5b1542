"""The first code goes into the highest bits.

It reads well in hexadecimal, but the files have it the other way round: code 0 in bits 0 to 3.

Refused by `test_the_first_code_is_in_the_lowest_bits`.
"""

from course.learner.edited import edited

CHANGE = """
pack
- words |= moved[..., i::8] << np.uint32(4 * i)
+ words |= moved[..., i::8] << np.uint32(28 - 4 * i)
"""

exec(edited(__file__, CHANGE))

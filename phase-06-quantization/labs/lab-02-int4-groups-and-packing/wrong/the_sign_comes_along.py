"""What is above the four bits is not cut off.

A word whose highest bit is set is negative, and shifting it to the right fills up with ones. Four bits
are left by `& 15`.

Refused by `test_the_first_code_is_in_the_lowest_bits`.
"""

from course.learner.edited import edited

CHANGE = """
unpack
- codes[..., i::8] = (moved >> (4 * i)) & 15
+ codes[..., i::8] = (moved >> (4 * i)) % 16 if i < 7 else moved >> (4 * i)
"""

exec(edited(__file__, CHANGE))

"""It leaves out the zero points.

AWQ stores one of 4 bits for each group, beside the scale.

Refused by `test_a_scale_is_shared`.
"""

from course.learner.edited import edited

CHANGE = """
bits_per_weight
- return bits + (scale_bits + zero_bits) / group_size
+ return bits + scale_bits / group_size
"""

exec(edited(__file__, CHANGE))

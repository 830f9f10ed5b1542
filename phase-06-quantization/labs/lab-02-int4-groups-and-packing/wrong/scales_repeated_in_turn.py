"""Columns take the scales in turn.

np.tile repeats the whole list, a b a b; a group is a stretch of neighbours, a a b b, which np.repeat
makes.

Refused by `test_dequantizing_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
dequantize_groups
- wide_scale, wide_zero = (np.repeat(part, size, axis=1) for part in (scale, zero_point))
+ wide_scale, wide_zero = (np.tile(part, (1, size)) for part in (scale, zero_point))
"""

exec(edited(__file__, CHANGE))

"""The zero point is added on the way back.

It is the code that stands for 0, so it comes off.

Refused by `test_dequantizing_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
dequantize_groups
- numbers: Array = ((codes - wide_zero) * wide_scale).astype(np.float32)
+ numbers: Array = ((codes + wide_zero) * wide_scale).astype(np.float32)
"""

exec(edited(__file__, CHANGE))

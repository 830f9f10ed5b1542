"""An asymmetric scale is the range over 16.

Sixteen codes have fifteen steps between them, so the largest weight would need a seventeenth code.

Refused by `test_an_asymmetric_group_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_groups
- exact = (high - low) / np.float32(15)
+ exact = (high - low) / np.float32(16)
"""

exec(edited(__file__, CHANGE))

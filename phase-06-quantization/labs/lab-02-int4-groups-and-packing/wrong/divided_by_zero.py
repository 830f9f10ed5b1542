"""A group of zeros is divided by its scale.

Its scale is 0. Any other would do, because 0 over anything is 0; the recipe says 1.

Refused by `test_a_group_of_zeros_stays_one`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_groups
- scale = np.where(scale == 0, np.float32(1), scale)
"""

exec(edited(__file__, CHANGE))

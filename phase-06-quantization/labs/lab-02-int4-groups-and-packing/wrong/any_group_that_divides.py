"""Only the list of the kernel is looked at.

2,752 inputs are 21 and a half groups of 128, and a group cannot be cut, whatever sizes the kernel takes.

Refused by `test_which_shapes_a_kernel_takes`.
"""

from course.learner.edited import edited

CHANGE = """
refused_by
- group_ok = group_size == -1 or in_features % group_size == 0
+ group_ok = True
"""

exec(edited(__file__, CHANGE))

"""A group size of -1 is divided by.

-1 says that the whole row shares a scale, so there is one group.

Refused by `test_bytes_of_a_layer_are_those_of_the_file`.
"""

from course.learner.edited import edited

CHANGE = """
layer_bytes
- groups = 1 if group_size == -1 else in_features // group_size
+ groups = in_features // abs(group_size)
"""

exec(edited(__file__, CHANGE))

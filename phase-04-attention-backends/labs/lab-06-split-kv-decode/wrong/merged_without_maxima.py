"""The states are added as they are.

Each split has subtracted its own largest score from its scores. A sum of 3 in one split and a sum of 3 in
another may differ by any factor, until both are brought to one maximum.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
merge_kernel
- rescale = tl.exp2(largest - new_largest)
- weight = tl.exp2(part_max - new_largest)
+ rescale = 1.0
+ weight = 1.0
"""

exec(edited(__file__, CHANGE))

"""The merge takes all splits that the table has room for.

A split behind the end of its sequence stored nothing, so its place holds what was there before: the state of
another sequence in an earlier step, perhaps.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
merge_kernel
- for split in range(used):
+ for split in range(num_splits):
"""

exec(edited(__file__, CHANGE))

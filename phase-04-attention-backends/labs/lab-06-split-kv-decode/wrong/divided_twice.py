"""Each split divides by its sum, and the merge treats the result as if it had not.

A normalised result is as good a state as an unfinished one, if the sum goes into its weight. vLLM's other
merge, of results with their logarithm of the sum, does so. Here the weight holds the maximum alone.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
split_kernel
- tl.store(part_acc_ptr + part_at, acc, mask=in_group[:, None])
+ tl.store(part_acc_ptr + part_at, acc / total[:, None], mask=in_group[:, None])
"""

exec(edited(__file__, CHANGE))

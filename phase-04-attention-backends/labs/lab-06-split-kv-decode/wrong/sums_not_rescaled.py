"""The accumulators are brought to one maximum, and the sums are not.

Numerator and denominator of a softmax were both computed with the split's own maximum.

Refused by `test_the_merged_result_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
merge_kernel
- total = total * rescale + part_sum * weight
+ total = total + part_sum
"""

exec(edited(__file__, CHANGE))

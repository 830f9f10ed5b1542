"""The sums of codes are returned as they are.

They are right up to a factor, and each output has another one.

Refused by `test_quant_linear_matches_fp_matmul`.
"""

from course.learner.edited import edited

CHANGE = """
Int8LinearMethod.apply
- return sums * layer.weight_scale.T
+ return sums
"""

exec(edited(__file__, CHANGE))

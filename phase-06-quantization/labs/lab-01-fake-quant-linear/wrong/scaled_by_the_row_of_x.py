"""The sums are multiplied by the scales as they stand, `[out, 1]`.

That is a scale for each row of x. It breaks where the two counts differ, and where they are equal, as in a
step with as many tokens as outputs, it gives wrong numbers without a word.

Refused by `test_quant_linear_matches_fp_matmul`.
"""

from course.learner.edited import edited

CHANGE = """
Int8LinearMethod.apply
- return sums * layer.weight_scale.T
+ return sums * (layer.weight_scale if len(x) == len(layer.qweight) else layer.weight_scale.T)
"""

exec(edited(__file__, CHANGE))

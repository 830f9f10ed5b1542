"""A row of the weight that is all 0 is divided by its largest magnitude.

The rule for tokens was written once more for rows, without their case of zeros. Pruned outputs are such rows.

Refused by `test_the_weight_has_a_scale_for_each_output`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_weight
- return quantize_activations(weight)
+ scale = np.abs(weight).max(axis=1, keepdims=True) / 127
+ with np.errstate(all="ignore"):
+     return np.rint(weight / scale).astype(np.int32), scale
"""

exec(edited(__file__, CHANGE))

"""A token of zeros is divided by its largest magnitude.

0 / 0 is NaN, and as an integer that is some number or other. A batch padded with zeros has such rows.

Refused by `test_codes_of_a_token`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_activations
- scale = np.where(scale == 0, 1.0, scale)
+ pass
"""

exec(edited(__file__, CHANGE))

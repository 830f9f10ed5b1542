"""Scores are multiplied by one over the root of `D`, whatever the caller says.

Most models do just that, and some do not. So the scale is an argument.

Refused by `test_the_scale_is_given`.
"""

from course.learner.edited import edited

CHANGE = """
_attend
- scores = fixed_sum(query[row][:, None] * k[:, :sees]) * scale
+ scores = fixed_sum(query[row][:, None] * k[:, :sees]) * np.float32(query.shape[2] ** -0.5)
"""

exec(edited(__file__, CHANGE))

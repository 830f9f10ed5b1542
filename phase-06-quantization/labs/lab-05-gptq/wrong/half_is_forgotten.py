"""The error is tr(D H Dᵀ).

H has a 2, because it is a second derivative. So the squared error itself is half of it.

Refused by `test_the_error_of_the_outputs`.
"""

from course.learner.edited import edited

CHANGE = """
output_error
- return float(((change @ h) * change).sum() / 2)
+ return float(((change @ h) * change).sum())
"""

exec(edited(__file__, CHANGE))

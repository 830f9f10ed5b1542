"""Only the diagonal of H is used for the error.

That counts each column's error by itself. Errors of columns whose inputs go together add up or cancel, and
that is all that GPTQ lives on.

Refused by `test_the_error_of_the_outputs`.
"""

from course.learner.edited import edited

CHANGE = """
output_error
- return float(((change @ h) * change).sum() / 2)
+ return float((change**2 * np.diag(h)).sum() / 2)
"""

exec(edited(__file__, CHANGE))

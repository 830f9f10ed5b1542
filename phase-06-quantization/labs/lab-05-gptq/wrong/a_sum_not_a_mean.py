"""H is XᵀX, not yet a mean.

GPTQ does not mind, because it divides each row of the inverse by its first entry. But the error that one
computes from it grows with the calibration text.

Refused by `test_the_hessian`.
"""

from course.learner.edited import edited

CHANGE = """
hessian
- return 2 / len(wide) * (wide.T @ wide)
+ return wide.T @ wide
"""

exec(edited(__file__, CHANGE))

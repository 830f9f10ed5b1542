"""The product of the inputs is summed in the inputs' dtype.

A sum of tens of thousands of float32 products loses its last digits, and H is inverted afterwards, which
can make small errors large.

Refused by `test_the_hessian`.
"""

from course.learner.edited import edited

CHANGE = """
hessian
- wide = np.asarray(x, np.float64)
- return 2 / len(wide) * (wide.T @ wide)
+ wide = np.asarray(x)
+ return (2 / len(wide) * (wide.T @ wide)).astype(np.float64)
"""

exec(edited(__file__, CHANGE))

"""`damp` itself is added to the diagonal.

Inputs of size 100 have an H of 10,000, and 0.01 is nothing there; inputs of size 0.01 are drowned. It is a
share of the mean of the diagonal.

Refused by `test_damping`.
"""

from course.learner.edited import edited

CHANGE = """
damped
- out = h + damp * np.diag(h).mean() * np.eye(len(h))
+ out = h + damp * np.eye(len(h))
"""

exec(edited(__file__, CHANGE))

"""`damp` itself is added to the diagonal.

Inputs of size 100 have 20,000 in H's diagonal, and 0.01 is nothing there; inputs of size 0.01 drown. It is a
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

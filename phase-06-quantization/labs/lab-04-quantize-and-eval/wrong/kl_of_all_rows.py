"""A sum over the rows.

A long document would be further away than a short one of the same model.

Refused by `test_kl_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
kl_divergence
- return float((np.exp(p) * (p - other)).sum(axis=-1).mean())
+ return float((np.exp(p) * (p - other)).sum())
"""

exec(edited(__file__, CHANGE))

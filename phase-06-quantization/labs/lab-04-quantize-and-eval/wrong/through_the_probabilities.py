"""The logarithm is taken again, of probabilities with a small number added.

The number keeps infinity away by making an answer up: whatever a model rules out costs at most 20.7 nats.

Refused by `test_logarithms_stay_logarithms`.
"""

from course.learner.edited import edited

CHANGE = """
kl_divergence
- return float((np.exp(p) * (p - other)).sum(axis=-1).mean())
+ return float((np.exp(p) * (p - np.log(np.exp(other) + 1e-9))).sum(axis=-1).mean())
"""

exec(edited(__file__, CHANGE))

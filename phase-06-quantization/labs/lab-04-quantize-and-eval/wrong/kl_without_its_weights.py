"""The difference of the logarithms, every token alike.

Most of the vocabulary is unlikely everywhere, and its logarithms say nothing about what is written.

Refused by `test_kl_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
kl_divergence
- return float((np.exp(p) * (p - other)).sum(axis=-1).mean())
+ return float((p - other).sum(axis=-1).mean())
"""

exec(edited(__file__, CHANGE))

"""The other model's probabilities are the weights.

The question is what of the reference was lost, so what the reference holds likely counts.

Refused by `test_kl_has_a_direction`.
"""

from course.learner.edited import edited

CHANGE = """
kl_divergence
- return float((np.exp(p) * (p - other)).sum(axis=-1).mean())
+ return float((np.exp(np.asarray(other, np.float64)) * (other - p)).sum(axis=-1).mean())
"""

exec(edited(__file__, CHANGE))

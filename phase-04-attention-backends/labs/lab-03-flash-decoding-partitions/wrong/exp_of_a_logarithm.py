"""The weights are taken as exp(lse), without anything off before.

An lse grows as scores do, so at 710 it overflows: inf / inf. As with scores, the larger of the two comes off
first.

Refused by `test_merge_outputs`.
"""

from course.learner.edited import edited

CHANGE = """
merge_outputs
- largest = _finite(np.maximum(lse_a, lse_b))
+ largest = np.zeros_like(lse_a)
"""

exec(edited(__file__, CHANGE))

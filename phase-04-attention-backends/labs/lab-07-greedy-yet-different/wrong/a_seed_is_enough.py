"""A seed is taken for the cure.

A seed chooses among random draws, and greedy draws nothing. What differs is computed before any sampling.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "seed=7": AS_BEFORE,
+ "seed=7": GONE,
"""

exec(edited(__file__, CHANGE))

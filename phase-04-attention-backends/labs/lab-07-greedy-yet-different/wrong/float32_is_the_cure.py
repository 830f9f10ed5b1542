"""float32 is taken for the cure.

The noise is some thousand times smaller, so it takes a nearer tie. There are some.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "float32": RARER,
+ "float32": GONE,
"""

exec(edited(__file__, CHANGE))

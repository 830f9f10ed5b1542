"""Twice as wide, and still the launches are thought to be what a step waits for.

At width 2048 a step reads 0.8 GB of weights, and a thousand launches more or less would hardly be seen.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "width 2048, batch 1": UNDECIDED,
+ "width 2048, batch 1": GAIN,
"""

exec(edited(__file__, CHANGE))

"""The norm that was given is changed.

Whoever compares before and after then compares after with after.

Refused by `test_smoothing_changes_no_output`.
"""

from course.learner.edited import edited

CHANGE = """
smooth
- return norm / s, [weight * s for weight in weights]
+ norm /= s
+ return norm, [weight * s for weight in weights]
"""

exec(edited(__file__, CHANGE))

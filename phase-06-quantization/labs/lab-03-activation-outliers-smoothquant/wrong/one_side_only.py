"""The columns are multiplied by s, and the norm stays.

The two are one change. Without the other half the layer computes another function.

Refused by `test_smoothing_changes_no_output`.
"""

from course.learner.edited import edited

CHANGE = """
smooth
- return norm / s, [weight * s for weight in weights]
+ return norm, [weight * s for weight in weights]
"""

exec(edited(__file__, CHANGE))

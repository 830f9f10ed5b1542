"""The norm is multiplied by s, and the columns are divided.

The layer computes the same, and the loud channels are louder than before.

Refused by `test_the_loudness_has_moved`.
"""

from course.learner.edited import edited

CHANGE = """
smooth
- return norm / s, [weight * s for weight in weights]
+ return norm * s, [weight / s for weight in weights]
"""

exec(edited(__file__, CHANGE))

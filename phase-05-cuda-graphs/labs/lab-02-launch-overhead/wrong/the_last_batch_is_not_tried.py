"""It stops one before `most`.

`range` leaves its end out.

Refused by `test_as_long_is_no_gain`.
"""

from course.learner.edited import edited

CHANGE = """
first_batch_without_gain
- for batch in range(1, most + 1):
+ for batch in range(1, most):
"""

exec(edited(__file__, CHANGE))

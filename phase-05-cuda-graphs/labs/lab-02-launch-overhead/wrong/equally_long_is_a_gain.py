"""It goes on where both take equally long.

Where the card works as long as the host launches, nothing is left to gain.

Refused by `test_as_long_is_no_gain`.
"""

from course.learner.edited import edited

CHANGE = """
first_batch_without_gain
- if device_time(card, model, batch, batch * context) >= launching_s:
+ if device_time(card, model, batch, batch * context) > launching_s:
"""

exec(edited(__file__, CHANGE))

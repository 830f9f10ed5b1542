"""It does not let the host wait.

After an `.item()` the host has no lead any more, and the card waits for the next launch.

Refused by `test_waiting_in_the_middle`.
"""

from course.learner.edited import edited

CHANGE = """
finish_time
- if i in waits_after:
-     host = device
+ pass
"""

exec(edited(__file__, CHANGE))

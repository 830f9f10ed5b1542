"""`num_cached_tokens` is set at each admission.

A victim that comes back finds what it has computed itself. A user is told what was found for the prompt:
whoever has output keeps the number.

Refused by `test_what_the_user_is_told`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if request.num_output_tokens == 0:
-     request.num_cached_tokens = num_hits
+ request.num_cached_tokens = num_hits
"""

exec(edited(__file__, CHANGE))

"""The prefix is looked up and held, and the whole prompt is computed all the same.

What is missing is the tokens less those found.

Refused by `test_a_newcomer_starts_behind_what_is_found`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- missing = request.num_tokens - num_hits
+ missing = request.num_tokens
"""

exec(edited(__file__, CHANGE))

"""The counter of somebody admitted starts at 0.

Then the next plan gives what is missing up to the prompt's end once more. The counter starts at what was
found.

Refused by `test_a_newcomer_starts_behind_what_is_found`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- request.num_computed_tokens = num_hits
+ request.num_computed_tokens = 0
"""

exec(edited(__file__, CHANGE))

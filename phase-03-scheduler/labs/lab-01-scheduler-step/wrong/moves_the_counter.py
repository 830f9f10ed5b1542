"""The loops move `num_computed_tokens`.

`schedule` does that once the plan is made, for everybody in it: now it has moved twice.

Refused by `test_what_an_admission_changes`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
  step.token_budget -= num_new_tokens
+ request.num_computed_tokens += num_new_tokens
"""

exec(edited(__file__, CHANGE))

"""The status still says that it waits.

Whoever runs has the status RUNNING; an abort looks there to find the right list.

Refused by `test_what_an_admission_changes`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
  step.token_budget -= num_new_tokens
+ request.status = RequestStatus.WAITING
"""

exec(edited(__file__, CHANGE))

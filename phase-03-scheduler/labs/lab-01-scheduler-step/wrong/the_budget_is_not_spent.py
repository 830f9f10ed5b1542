"""An admission does not take from the budget.

Then the next one gets the same tokens again, and the step is too large.

Refused by `test_the_budget_cuts_the_last_one`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- step.token_budget -= num_new_tokens
"""

exec(edited(__file__, CHANGE))

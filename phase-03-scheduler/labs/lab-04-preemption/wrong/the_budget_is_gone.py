"""The victim leaves the plan, but its tokens are not given back to the budget.

They will not be computed, so somebody else in this step may have them.

Refused by `test_a_victim_of_this_step_gives_all_back`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- step.token_budget += step.num_scheduled_tokens.pop(preempted_req.request_id)
+ step.num_scheduled_tokens.pop(preempted_req.request_id)
"""

exec(edited(__file__, CHANGE))

"""A victim that this step had served stays in the plan.

The worker would compute a token into blocks that are somebody else's now.

Refused by `test_a_victim_of_this_step_gives_all_back`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- step.scheduled_running_reqs.remove(preempted_req)
- step.req_to_new_blocks.pop(preempted_req.request_id)
- step.token_budget += step.num_scheduled_tokens.pop(preempted_req.request_id)
+ step.token_budget += step.num_scheduled_tokens[preempted_req.request_id]
"""

exec(edited(__file__, CHANGE))

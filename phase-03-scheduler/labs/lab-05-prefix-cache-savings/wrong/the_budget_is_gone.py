"""A victim that was served already keeps the tokens that the step had given it.

They are not computed, so the budget has them again, for whoever stands behind.

Refused by `test_a_victim_gives_back_its_place_and_its_budget`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- step.token_budget += step.num_scheduled_tokens.pop(victim.request_id)
+ del step.num_scheduled_tokens[victim.request_id]
"""

exec(edited(__file__, CHANGE))

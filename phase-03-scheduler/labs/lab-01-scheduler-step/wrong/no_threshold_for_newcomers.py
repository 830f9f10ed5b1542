"""The threshold is not asked for at admission.

The first piece of a prompt is the one that is longest: clamp it like the others.

Refused by `test_a_threshold_for_those_who_run`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- num_new_tokens = clamp(
-     request.num_tokens, self.long_prefill_token_threshold, step.token_budget
- )
+ num_new_tokens = min(request.num_tokens, step.token_budget)
"""

exec(edited(__file__, CHANGE))

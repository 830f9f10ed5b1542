"""A prompt is cut to what the budget has left, also where chunked prefill is off.

Then it waits, and those behind it do.

Refused by `test_without_chunks`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if num_new_tokens > step.token_budget:
-     if not self.config.enable_chunked_prefill:
-         break
-     num_new_tokens = step.token_budget
+ num_new_tokens = min(num_new_tokens, step.token_budget)
"""

exec(edited(__file__, CHANGE))

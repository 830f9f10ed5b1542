"""Without chunked prefill the whole prompt is held against the budget.

Only what is missing is computed. A long prompt that is mostly found fits into what is left.

Refused by `test_without_chunks`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if num_new_tokens > step.token_budget:
-     if not self.config.enable_chunked_prefill:
-         break
-     num_new_tokens = step.token_budget
+ if not self.config.enable_chunked_prefill and request.num_tokens > step.token_budget:
+     break
+ num_new_tokens = min(num_new_tokens, step.token_budget)
"""

exec(edited(__file__, CHANGE))

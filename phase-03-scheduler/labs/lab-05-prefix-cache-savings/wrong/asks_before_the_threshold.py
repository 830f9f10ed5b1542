"""Without chunks a prompt waits if all that it misses is more than the step has left.

The threshold cuts first. Compare what is asked for after that.

Refused by `test_without_chunks`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if num_new_tokens > step.token_budget:
-     if not self.config.enable_chunked_prefill:
-         break
-     num_new_tokens = step.token_budget
+ if missing > step.token_budget and not self.config.enable_chunked_prefill:
+     break
+ num_new_tokens = min(num_new_tokens, step.token_budget)
"""

exec(edited(__file__, CHANGE))

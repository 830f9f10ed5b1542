"""Whoever runs gets one token.

A request in the middle of its prompt runs too, and is behind by more. What is missing is tokens less
computed.

Refused by `test_whoever_is_behind_gets_what_is_missing`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- num_new_tokens = clamp(
-     request.num_tokens - request.num_computed_tokens,
-     self.long_prefill_token_threshold,
-     step.token_budget,
- )
+ num_new_tokens = 1
"""

exec(edited(__file__, CHANGE))

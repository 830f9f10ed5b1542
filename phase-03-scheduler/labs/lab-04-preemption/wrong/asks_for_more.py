"""Whoever asks again asks for more, because a victim has given tokens back.

vLLM cuts the piece once, before the first try. What comes back in between is for those behind.

Refused by `test_the_asker_asks_for_the_same`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
  step.preempted_reqs.append(preempted_req)
  if preempted_req is request:
      return
- new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
+ num_new_tokens = clamp(
+     request.num_tokens - request.num_computed_tokens,
+     self.long_prefill_token_threshold,
+     step.token_budget,
+ )
+ new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
"""

exec(edited(__file__, CHANGE))

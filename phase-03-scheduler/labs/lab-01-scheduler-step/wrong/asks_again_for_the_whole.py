"""Whoever runs is asked again whether the whole sequence fits.

That is asked at admission. Afterwards others have taken blocks, too, and a piece that fits would be refused.

Refused by `test_who_runs_asks_for_a_piece`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
+ new_blocks = self.kv_cache_manager.allocate_slots(
+     request, num_new_tokens, full_sequence_must_fit=self.config.scheduler_reserve_full_isl
+ )
"""

exec(edited(__file__, CHANGE))

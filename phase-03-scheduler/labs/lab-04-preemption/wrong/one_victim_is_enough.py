"""One victim, and if that is not enough the step is over.

A piece of a prompt may want several blocks. Preempt and ask again, until it fits.

Refused by `test_as_many_victims_as_it_takes`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- while new_blocks is None:
+ if new_blocks is None:

Scheduler._schedule_running
  if preempted_req is request:
      return
  new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
+ if new_blocks is None:
+     return
"""

exec(edited(__file__, CHANGE))

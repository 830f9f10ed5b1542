"""The plan names the whole table of whoever runs.

The worker has the table already, and adds what is new to it: put in what `allocate_slots` gave.

Refused by `test_blocks_for_whoever_runs`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- step.req_to_new_blocks[request.request_id] = new_blocks
+ step.req_to_new_blocks[request.request_id] = self.kv_cache_manager.get_blocks(
+     request.request_id
+ )
"""

exec(edited(__file__, CHANGE))

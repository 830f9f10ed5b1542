"""After a request has preempted itself, those behind it are served.

It sounds kind, and is not what vLLM does: blocks are short, and the loop ends there.

Refused by `test_its_own_victim_ends_the_loop`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
  if preempted_req is request:
-     return
+     break

Scheduler._schedule_running
+ if new_blocks is None:
+     continue
  step.scheduled_running_reqs.append(request)
"""

exec(edited(__file__, CHANGE))

"""Whoever comes back is sent as a newcomer.

The worker has him already. Ask the status before you change it.

Refused by `test_who_comes_back_is_resumed`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if request.status is RequestStatus.PREEMPTED:
-     step.scheduled_resumed_reqs.append(request)
- else:
-     step.scheduled_new_reqs.append(request)
+ step.scheduled_new_reqs.append(request)
"""

exec(edited(__file__, CHANGE))

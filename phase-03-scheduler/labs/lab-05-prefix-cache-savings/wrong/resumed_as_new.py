"""Who comes back is sent to the worker as new.

The worker has the request and its tokens already. The status PREEMPTED says that it comes back.

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

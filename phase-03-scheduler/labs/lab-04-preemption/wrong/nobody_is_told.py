"""`step.preempted_reqs` stays empty.

`schedule` looks there to admit nobody in this step, and the plan tells the worker.

Refused by `test_nobody_is_admitted_beside_a_preemption`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- step.preempted_reqs.append(preempted_req)
"""

exec(edited(__file__, CHANGE))

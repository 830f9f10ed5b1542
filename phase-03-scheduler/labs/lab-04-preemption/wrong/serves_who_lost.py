"""The victim was the request itself, and it is asked for and served all the same.

It has left `running`, and its tokens are uncomputed: a plan that serves it computes one token in the void.
Leave the loop.

Refused by `test_the_last_one_preempts_itself`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- if preempted_req is request:
+ if not self.running:
"""

exec(edited(__file__, CHANGE))

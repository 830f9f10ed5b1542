"""Under priority, too, the last of the running list goes.

There the list's order is that of admission. Whom the users find least important, the number says.

Refused by `test_the_least_important_loses`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._pop_victim
- if self.policy is SchedulingPolicy.FCFS:
+ if True:
"""

exec(edited(__file__, CHANGE))

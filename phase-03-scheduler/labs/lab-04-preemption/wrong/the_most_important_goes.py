"""The smallest number goes.

A lower number is served first, so it is the last to lose its blocks.

Refused by `test_the_least_important_loses`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._pop_victim
- victim = max(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
+ victim = min(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
"""

exec(edited(__file__, CHANGE))

"""Whoever is admitted stays in the queue.

A living request either waits or runs, never both: pop it once it has its blocks.

Refused by `test_what_an_admission_changes`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- len(self.waiting)
+ any(request not in self.running for request in self.waiting)

Scheduler._schedule_waiting
- request = self.waiting.peek_request()
+ request = next(r for r in self.waiting if r not in self.running)

Scheduler._schedule_waiting
- self.waiting.pop_request()
"""

exec(edited(__file__, CHANGE))

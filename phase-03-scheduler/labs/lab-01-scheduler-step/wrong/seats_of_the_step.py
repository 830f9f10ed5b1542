"""The seats are counted from the plan, not from the list.

Whoever runs without getting a token in this step still has a seat: `len(self.running)`.

Refused by `test_seats`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- and len(self.running) < self.max_num_running_reqs
+ and len(step.scheduled_new_reqs) < self.max_num_running_reqs
"""

exec(edited(__file__, CHANGE))

"""The victim goes to the end of the queue.

Then newcomers take the blocks that it gave, and it may be overtaken for ever. `prepend_request` keeps
its place.

Refused by `test_victims_wait_at_the_head`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._preempt_request
- self.waiting.prepend_request(request)
+ self.waiting.add_request(request)
"""

exec(edited(__file__, CHANGE))

"""The first of the running list loses its blocks.

It has been there longest and has the most to lose, and if it never gets to its end nobody does. Pop from
the end.

Refused by `test_the_last_of_the_running_loses`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._pop_victim
- return self.running.pop()
+ return self.running.pop(0)
"""

exec(edited(__file__, CHANGE))

"""Equal priority, equal arrival: whoever stands first in the list goes.

So each of two equals is preempted for the other in turn, and neither ends. (vLLM 0.22.1 does this.) Let the
id decide, as the queue does.

Refused by `test_equals_do_not_take_turns`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._pop_victim
- victim = max(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
+ victim = max(self.running, key=lambda r: (r.priority, r.arrival_time))
"""

exec(edited(__file__, CHANGE))

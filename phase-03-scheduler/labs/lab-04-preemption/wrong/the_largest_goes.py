"""The request with the most tokens loses its blocks, because that frees the most.

It is the one that costs most to compute again, and perhaps the first of all. FCFS takes the last.

Refused by `test_as_many_victims_as_it_takes`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._pop_victim
- return self.running.pop()
+ largest = max(reversed(self.running), key=lambda r: r.num_tokens)
+ self.running.remove(largest)
+ return largest
"""

exec(edited(__file__, CHANGE))

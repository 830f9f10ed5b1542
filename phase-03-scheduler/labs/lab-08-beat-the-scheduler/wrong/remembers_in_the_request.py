"""It raises the priority of whoever is passed over.

The request belongs to the engine, and the key is to depend on request and time only.

Refused by `test_a_policy_reads_and_no_more`.
"""

from course.learner.edited import edited

CHANGE = """
policy
  waited = now - request.arrival_time
+ request.priority -= 1
"""

exec(edited(__file__, CHANGE))

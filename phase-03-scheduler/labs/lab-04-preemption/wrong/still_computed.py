"""The counter stays where it was.

The KV is gone. When the request comes back, the plan would compute its last token only, over blocks that
hold somebody else's keys.

Refused by `test_what_a_victim_keeps`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._preempt_request
- request.num_computed_tokens = 0
"""

exec(edited(__file__, CHANGE))

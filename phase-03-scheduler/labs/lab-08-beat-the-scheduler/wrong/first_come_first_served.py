"""It serves whoever came first.

Fair, and under load everybody is late: the queue is longer than the limit, and who is
served is always the one who has waited longest.

Refused by `test_more_are_served_in_time`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- if waited > PATIENCE_S:
-     return (0, request.arrival_time)
- if waited <= TTFT_S or request.num_output_tokens:
-     return (1, work)
- return (2, work)
+ return request.arrival_time
"""

exec(edited(__file__, CHANGE))

"""It serves the important first.

Importance is what the client says. Who sees to it that everybody gets a share?

Refused by `test_users_are_served_alike`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- if waited > PATIENCE_S:
-     return (0, request.arrival_time)
- if waited <= TTFT_S or request.num_output_tokens:
-     return (1, work)
- return (2, work)
+ return (request.priority, request.arrival_time)
"""

exec(edited(__file__, CHANGE))

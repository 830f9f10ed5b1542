"""It serves the shortest first, for ever.

As long as short ones keep coming, a long one does not get its turn. What does it need besides?

Refused by `test_nobody_starves`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- if waited > PATIENCE_S:
-     return (0, request.arrival_time)
- if waited <= TTFT_S or request.num_output_tokens:
-     return (1, work)
- return (2, work)
+ return work
"""

exec(edited(__file__, CHANGE))

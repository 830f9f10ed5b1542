"""It serves the newest first, since the newest can still be in time.

Who is not served at once is not served until nobody comes any more.

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
+ return -request.arrival_time
"""

exec(edited(__file__, CHANGE))

"""`num_cached_tokens` is set at the first admission only.

Who loses the blocks before the first token is admitted again, and the first token comes from that
admission. It is the output that ends it.

Refused by `test_what_the_user_is_told_before_the_first_token`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if request.num_output_tokens == 0:
+ if request.num_preemptions == 0:
"""

exec(edited(__file__, CHANGE))

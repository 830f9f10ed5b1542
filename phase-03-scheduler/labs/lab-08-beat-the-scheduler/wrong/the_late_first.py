"""It helps those first who are late already.

They cannot be good any more, and each takes the seat of one who could.

Refused by `test_more_are_served_in_time`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- if waited <= TTFT_S or request.num_output_tokens:
+ if waited > TTFT_S:
"""

exec(edited(__file__, CHANGE))

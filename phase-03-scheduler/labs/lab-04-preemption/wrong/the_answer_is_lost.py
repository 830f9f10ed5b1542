"""The victim starts over from its prompt.

Its reader has those tokens on the screen. Only KV is lost, and KV can be computed again.

Refused by `test_what_a_victim_keeps`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._preempt_request
  request.num_computed_tokens = 0
+ request.output_token_ids.clear()
+ request.all_token_ids = list(request.prompt_token_ids)
+ request.num_tokens = request.num_prompt_tokens
"""

exec(edited(__file__, CHANGE))

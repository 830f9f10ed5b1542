"""It counts `prompt_token_ids` itself.

Names that one engine has, or a test's request has not, are no part of what policies are told.

Refused by `test_a_policy_reads_and_no_more`.
"""

from course.learner.edited import edited

CHANGE = """
policy
- work = request.num_prompt_tokens + STEP_IN_TOKENS * request.max_tokens
+ work = len(request.prompt_token_ids) + STEP_IN_TOKENS * request.max_tokens
"""

exec(edited(__file__, CHANGE))

"""A request gets all that is missing or nothing.

A prompt that is longer than the step is cut: it gets what the budget has left.

Refused by `test_clamp`.
"""

from course.learner.edited import edited

CHANGE = """
clamp
- return min(num_new_tokens, token_budget)
+ return num_new_tokens if num_new_tokens <= token_budget else 0
"""

exec(edited(__file__, CHANGE))

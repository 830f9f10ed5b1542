"""The counts of tokens are given back, not the rungs that they run as.

Twelve different counts may share a rung, and a graph is captured for the rung.

Refused by `test_only_what_is_stepped_on`.
"""

from course.learner.edited import edited

CHANGE = """
visited
- rungs = [padded(num_tokens, sizes) for num_tokens in steps if num_tokens <= top]
+ rungs = [num_tokens for num_tokens in steps if num_tokens <= top]
"""

exec(edited(__file__, CHANGE))

"""A step is a decode if its tokens are as many as its requests would have.

Three and five tokens are two times four. vLLM looks at the largest count as well.

Refused by `test_equal_counts_are_enough`.
"""

from course.learner.edited import edited

CHANGE = """
is_uniform_decode
- return all(count == uniform_decode_query_len for count in num_scheduled_tokens)
+ return sum(num_scheduled_tokens) == uniform_decode_query_len * len(num_scheduled_tokens)
"""

exec(edited(__file__, CHANGE))

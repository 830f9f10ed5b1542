"""Equal counts are enough, whatever they are.

Two prompts of eight tokens are uniform, and no decode: the FULL graphs were recorded for another count.

Refused by `test_equal_counts_are_enough`.
"""

from course.learner.edited import edited

CHANGE = """
is_uniform_decode
- return all(count == uniform_decode_query_len for count in num_scheduled_tokens)
+ return len(set(num_scheduled_tokens)) == 1
"""

exec(edited(__file__, CHANGE))

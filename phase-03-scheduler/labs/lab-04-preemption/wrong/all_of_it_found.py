"""All tokens may be found.

One at least is computed, or there are no logits: beyond `num_tokens - 1` there is no answer but None.

Refused by `test_break_even`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- for num_found in range(num_tokens):
+ for num_found in range(num_tokens + 1):
"""

exec(edited(__file__, CHANGE))

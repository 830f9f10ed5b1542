"""The longest step gets no rung of its own.

With prompts waiting a server runs its longest step again and again; at 300 it would have no graph.

Refused by `test_the_longest_step_has_a_rung`.
"""

from course.learner.edited import edited

CHANGE = """
capture_sizes
- if top == max_num_batched_tokens:
+ if top == max_num_batched_tokens and top % 8 == 0:
"""

exec(edited(__file__, CHANGE))

"""A step above the top rung is computed as the top rung.

Where should the other tokens go? It runs without a graph, and without padding.

Refused by `test_above_the_top_nothing_is_padded`.
"""

from course.learner.edited import edited

CHANGE = """
padded
- return sizes[place] if place < len(sizes) else num_tokens
+ return sizes[place] if place < len(sizes) else max([*sizes, 1])
"""

exec(edited(__file__, CHANGE))

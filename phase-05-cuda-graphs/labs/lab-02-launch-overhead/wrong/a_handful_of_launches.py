"""It takes attention for part of the pieces.

"Pieces and attention" sounds like a handful of launches. But what no piece may hold is launched by itself, in
every layer.

Refused by `test_pieces_reach_from_layer_to_layer`.
"""

from course.learner.edited import edited

CHANGE = """
launches
- model = kernels.layers + 1 + kernels.layers * kernels.split
+ model = kernels.layers + 1
"""

exec(edited(__file__, CHANGE))

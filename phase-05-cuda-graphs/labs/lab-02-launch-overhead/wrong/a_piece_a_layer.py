"""It counts one piece for each layer.

L cuts make L + 1 pieces.

Refused by `test_pieces_reach_from_layer_to_layer`.
"""

from course.learner.edited import edited

CHANGE = """
launches
- model = kernels.layers + 1 + kernels.layers * kernels.split
+ model = kernels.layers + kernels.layers * kernels.split
"""

exec(edited(__file__, CHANGE))

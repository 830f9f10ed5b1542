"""It counts a piece before attention and one behind it, in every layer.

Nothing stands between the end of a layer and the beginning of the next, so both are in one piece.

Refused by `test_pieces_reach_from_layer_to_layer`.
"""

from course.learner.edited import edited

CHANGE = """
launches
- model = kernels.layers + 1 + kernels.layers * kernels.split
+ model = 2 * kernels.layers + kernels.layers * kernels.split
"""

exec(edited(__file__, CHANGE))

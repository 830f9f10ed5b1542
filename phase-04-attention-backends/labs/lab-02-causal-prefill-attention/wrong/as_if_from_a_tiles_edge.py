"""The count takes the chunk to begin with a tile.

It begins where the last one ended, or where the prefix cache had no more, which is anywhere. The first
tile of queries ends in tile (start_pos - 1) // tile + 1, not in start_pos // tile.

Refused by `test_tiles_by_formula`.
"""

from course.learner.edited import edited

CHANGE = """
num_tiles
- first = -(-start_pos // tile) + 1
+ first = start_pos // tile + 1
"""

exec(edited(__file__, CHANGE))

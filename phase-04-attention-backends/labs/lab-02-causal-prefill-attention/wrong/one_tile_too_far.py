"""The loop goes one tile past the diagonal, and leaves it to the mask to hide it.

Its scores are all -inf, so it adds nothing and costs as much as any other. And it may not be written yet:
then its V are garbage, and 0 times NaN is NaN. A causal mask is the end of a loop.

Refused by `test_tiles_visited`.
"""

from course.learner.edited import edited

CHANGE = """
attend_tile
- full, tiles = tile_bounds(first, first + n - 1, tile)
+ full, tiles = tile_bounds(first, first + n - 1, tile)
+ tiles += 1

attend_tile
- end = min(begin + tile, first + n)
+ end = begin + tile
"""

exec(edited(__file__, CHANGE))

"""The tiles are counted one by one.

It is right, and takes as long as the chunk is. The tiles of queries see one tile more each: that is a sum
that one can write down.

Refused by `test_tiles_by_formula`.
"""

from course.learner.edited import edited

CHANGE = """
num_tiles
- whole = -(-n // tile) - 1
- first = -(-start_pos // tile) + 1
- last = (start_pos + n - 1) // tile + 1
- return whole * first + whole * (whole - 1) // 2 + last
+ return sum(-(-(start_pos + min(at + tile, n)) // tile) for at in range(0, n, tile))
"""

exec(edited(__file__, CHANGE))

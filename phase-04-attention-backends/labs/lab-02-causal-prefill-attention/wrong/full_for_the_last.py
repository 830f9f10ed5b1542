"""A tile counts as full when the last token sees all of it.

Then its mask is left out, and the tokens before that see keys of the future. A tile needs no mask when
the *first* token sees all of it.

Refused by `test_tile_bounds`.
"""

from course.learner.edited import edited

CHANGE = """
tile_bounds
- return (first + 1) // tile, last // tile + 1
+ return (last + 1) // tile, last // tile + 1
"""

exec(edited(__file__, CHANGE))

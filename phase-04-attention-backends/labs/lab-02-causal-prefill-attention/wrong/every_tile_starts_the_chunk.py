"""Each tile of queries is taken for the chunk's first.

The second tile of queries begins `query_tile` positions later. With one tile for the whole chunk it does
not show.

Refused by `test_prefill_is_dense`.
"""

from course.learner.edited import edited

CHANGE = """
prefill
- out[rows] = attend_tile(query[rows], keys, start_pos + at, scale, key_tile)
+ out[rows] = attend_tile(query[rows], keys, start_pos, scale, key_tile)
"""

exec(edited(__file__, CHANGE))

"""Keys are dealt out one by one.

A segment gets whole tiles. 257 keys are 17 tiles of 16, so somebody has two.

Refused by `test_keys_in_turn`.
"""

from course.learner.edited import edited

CHANGE = """
keys_in_turn
- return -(-seq_len // (how.segments * how.tile)) * how.tile
+ return -(-seq_len // how.segments)
"""

exec(edited(__file__, CHANGE))

"""The keys are cut into 16 equal parts, without regard to tiles.

A kernel goes tile by tile, so a segment has whole tiles. 203 keys are 13 tiles of 16: thirteen segments get
one each, and three get nothing.

Refused by `test_segments`.
"""

from course.learner.edited import edited

CHANGE = """
segments
- keys = -(-seq_len // (num_segments * tile)) * tile
+ keys = -(-seq_len // num_segments)
"""

exec(edited(__file__, CHANGE))

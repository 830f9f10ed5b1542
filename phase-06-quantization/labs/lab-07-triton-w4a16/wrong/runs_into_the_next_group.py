"""The last tile of a group is not cut where the group ends.

With groups of 24 and tiles of 32 the tile takes eight inputs of the next group too. They count twice, once
with the wrong scale; behind the last group it takes what lies behind the row.

Refused by `test_the_product_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- if GROUP % BLOCK_K != 0:
+ if False:
"""

exec(edited(__file__, CHANGE))

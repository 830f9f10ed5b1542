"""Every tile gets a mask.

It hides nothing in a full tile, so the numbers are right. But a comparison for each score is work of the
same order as the softmax itself, and nine in ten of a long prompt's tiles need none.

Refused by `test_masks_where_needed`.
"""

from course.learner.edited import edited

CHANGE = """
attend_tile
- if number >= full:
-     scores = hide_future(scores, begin, position)
+ scores = hide_future(scores, begin, position)
"""

exec(edited(__file__, CHANGE))

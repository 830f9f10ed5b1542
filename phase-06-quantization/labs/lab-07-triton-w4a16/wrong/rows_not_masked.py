"""Rows that only fill up the tile are stored.

They lie behind the last row: where another split keeps its sums, or behind the end of out.

Refused by `test_the_product_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- tl.store(out_ptr + at, acc, mask=in_rows[None, :] & in_outputs[:, None])
+ tl.store(out_ptr + at, acc, mask=in_outputs[:, None])
"""

exec(edited(__file__, CHANGE))

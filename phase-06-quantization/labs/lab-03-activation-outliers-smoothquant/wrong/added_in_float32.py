"""The products are added up in float32.

It holds integers up to 2^24 exactly, and 1,041 products of 127 and 127 are more. The error is small, but
it depends on the order of the sum, so two kernels disagree.

Refused by `test_integers_are_added_exactly`.
"""

from course.learner.edited import edited

CHANGE = """
w8a8
- sums = x_codes.astype(np.float64) @ w_codes.T.astype(np.float64)
+ sums = x_codes.astype(np.float32) @ w_codes.T.astype(np.float32)
"""

exec(edited(__file__, CHANGE))

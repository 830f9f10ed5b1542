"""The products are added up in int16.

Two products of 127 and 127 fit, and three do not: int16 ends at 32,767, and numpy wraps around without a
word. Tensor cores add such products in int32.

Refused by `test_the_product`.
"""

from course.learner.edited import edited

CHANGE = """
w8a8
- sums = x_codes.astype(np.float64) @ w_codes.T.astype(np.float64)
+ sums = x_codes.astype(np.int16) @ w_codes.T.astype(np.int16)
"""

exec(edited(__file__, CHANGE))

"""The inverse of AWQ's order is applied.

0 2 4 6 1 3 5 7 says which column a nibble holds. The other list, 0 4 1 5 2 6 3 7, says in which nibble
a column is.

Refused by `test_awqs_order`.
"""

from course.learner.edited import edited

CHANGE = """
pack_awq
- return pack(eights[:, :, list(AWQ_ORDER)].reshape(codes.shape), axis=1)
+ return pack(eights[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(codes.shape), axis=1)
"""

exec(edited(__file__, CHANGE))

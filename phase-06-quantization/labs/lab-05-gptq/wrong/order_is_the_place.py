"""`order // group_size` is taken for the groups of the columns.

`order[i]` is the column that came i-th. What is wanted is the other way round: when column j came. That
is `argsort(order)`.

Refused by `test_loud_inputs_first`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- return Quantized(codes[:, place], np.hstack(scales), place // group_size)
+ return Quantized(codes[:, place], np.hstack(scales), order // group_size)
"""

exec(edited(__file__, CHANGE))

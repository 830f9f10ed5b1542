"""The product is left to the library.

`x @ weight` calls a BLAS, which has one kernel for one row and another for several, and adds in another
order in each.

Refused by `test_a_row_of_a_product_knows_no_batch`.
"""

from course.learner.edited import edited

CHANGE = """
linear
- columns = np.ascontiguousarray(weight.T)
- return np.stack([fixed_sum(row * columns) for row in x])
+ return np.asarray(x @ weight)
"""

exec(edited(__file__, CHANGE))

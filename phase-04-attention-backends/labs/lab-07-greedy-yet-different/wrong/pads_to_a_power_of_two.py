"""The batch is padded to a power of two, and each sum is cut by the padded number of rows.

Fewer sizes are fewer orders, but not one: with 3 rows beside her she is in another bucket than with 4.
CUDA graphs pad like this, too.

Refused by `test_a_row_of_a_product_knows_no_batch`.
"""

from course.learner.edited import edited

CHANGE = """
linear
- return np.stack([fixed_sum(row * columns) for row in x])
+ padded = 1 << (len(x) - 1).bit_length()
+ pieces = np.array_split(np.arange(len(weight)), max(1, 8 // padded))
+ return sum(np.stack([fixed_sum((row * columns)[:, p]) for row in x]) for p in pieces)
"""

exec(edited(__file__, CHANGE))

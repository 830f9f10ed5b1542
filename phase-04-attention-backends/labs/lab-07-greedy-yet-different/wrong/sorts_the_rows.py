"""The rows are sorted first, and each sum is cut by their number.

Then it does not matter in which order the requests came. It still matters how many did.

Refused by `test_a_row_of_a_product_knows_no_batch`.
"""

from course.learner.edited import edited

CHANGE = """
linear
- return np.stack([fixed_sum(row * columns) for row in x])
+ order = np.argsort(x[:, 0], kind="stable")
+ pieces = np.array_split(np.arange(len(weight)), 4 if len(x) < 16 else 1)
+ done = sum(np.stack([fixed_sum((row * columns)[:, p]) for row in x[order]]) for p in pieces)
+ return done[np.argsort(order, kind="stable")]
"""

exec(edited(__file__, CHANGE))

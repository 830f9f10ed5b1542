"""A product is summed in float64, in as many pieces as the number of rows suggests, and rounded at the end.

Where large terms cancel, float64 rounds as well, and the order shows.

Refused by `test_a_product_in_more_bits_is_not_safe`.
"""

from course.learner.edited import edited

CHANGE = """
linear
- return np.stack([fixed_sum(row * columns) for row in x])
+ lanes = 8 if len(x) < 4 else 1
+ terms = x.astype(np.float64)[:, None] * columns
+ return sum(np.cumsum(terms[..., i::lanes], axis=-1)[..., -1] for i in range(lanes)).astype(np.float32)
"""

exec(edited(__file__, CHANGE))

"""The sum is taken in float64 and rounded at the end.

That makes the noise so small that it is rarely seen, and leaves it there: nobody has said who is added to
whom. Where large terms cancel it is back.

Refused by `test_more_bits_are_not_an_order`.
"""

from course.learner.edited import edited

CHANGE = """
fixed_sum
- terms = np.asarray(terms, np.float32)
- length = terms.shape[-1]
+ if True:
+     return np.asarray(np.asarray(terms, np.float64).sum(axis=-1), np.float32)
+ length = terms.shape[-1]
"""

exec(edited(__file__, CHANGE))

"""The order is left to `np.sum`.

`np.sum` adds in pairs along memory where the axis is contiguous, and row after row where it is not. So the
same terms have other sums in another layout.

Refused by `test_a_sum_knows_only_its_terms`.
"""

from course.learner.edited import edited

CHANGE = """
fixed_sum
- terms = np.asarray(terms, np.float32)
- length = terms.shape[-1]
+ if True:
+     return np.asarray(np.sum(terms, axis=-1, dtype=np.float32))
+ length = terms.shape[-1]
"""

exec(edited(__file__, CHANGE))

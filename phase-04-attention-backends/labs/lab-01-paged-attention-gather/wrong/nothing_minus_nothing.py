"""A row that has seen no key has m = -inf, and that is taken off its scores, which are -inf too.

The difference is NaN, and NaN stays. It happens where a row's first tiles are all hidden from it: behind
a sliding window, or in a part of the keys that belongs to later tokens.

Refused by `test_rows_that_have_seen_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
update
- base = np.where(np.isneginf(m), 0.0, m)
+ base = m
"""

exec(edited(__file__, CHANGE))

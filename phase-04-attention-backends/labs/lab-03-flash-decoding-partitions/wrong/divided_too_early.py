"""A part divides its values by its own l, and hands both over.

The mean of a part is right for the part. But the merge takes acc for a sum, and adds a mean of 200 keys as
if it were one key. Either nothing is divided, or the log-sum-exp goes along instead.

Refused by `test_a_part_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
attend_partial
- return State(m, weights.sum(axis=1), weights @ value)
+ sums = weights.sum(axis=1)
+ return State(m, sums, weights @ value / np.maximum(sums, 1e-300)[:, None])
"""

exec(edited(__file__, CHANGE))

"""A half is always rounded up.

0.5 and 1.5 then go to 1 and 2, so weights grow by a little on average. Half to even does not favour a
side.

Refused by `test_a_group_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_groups
- codes = np.rint(np.clip(steps, 0, 15)).reshape(rows, columns)
+ codes = np.floor(np.clip(steps, 0, 15) + 0.5).reshape(rows, columns)
"""

exec(edited(__file__, CHANGE))

"""The positions are right for rows that go head by head, and these go token by token.

Row r belongs to token r // group. With r % n row 1 is taken for the second token, where it is the first
token's second head.

Refused by `test_rows_of_a_kv_head_lie_together`.
"""

from course.learner.edited import edited

CHANGE = """
row_positions
- return first + np.arange(n * group) // group
+ return first + np.arange(n * group) % n
"""

exec(edited(__file__, CHANGE))

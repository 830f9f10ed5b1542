"""The rows are counted from the chunk's beginning, as if it were the whole prompt.

A chunk's first token stands at `first` and sees all that earlier chunks have written. For a whole prompt
the two are the same, so a test without chunks does not notice.

Refused by `test_rows_of_a_kv_head_lie_together`.
"""

from course.learner.edited import edited

CHANGE = """
row_positions
- return first + np.arange(n * group) // group
+ return np.arange(n * group) // group
"""

exec(edited(__file__, CHANGE))

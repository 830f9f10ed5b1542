"""All splits store their sums to one place.

The programs run in any order, so what stands there in the end is any split's part. Each needs a place of its
own, which `add_splits` finds.

Refused by `test_programs_leave_no_race`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- at = (split * num_rows + row[None, :]) * out_features + output[:, None]
+ at = row[None, :] * out_features + output[:, None] + 0 * split
"""

exec(edited(__file__, CHANGE))

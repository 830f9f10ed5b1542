"""The norm has four threads for a row where rows are few.

Who sums with whom then depends on the number of rows. The pin has such a rule, as the README tells.

Refused by `test_a_norm_knows_no_batch`.
"""

from course.learner.edited import edited

CHANGE = """
rms_norm
- variance = fixed_sum(x * x) / np.float32(x.shape[-1])
+ threads = 4 if len(x) < 16 else 1
+ variance = sum(fixed_sum((x * x)[:, i::threads]) for i in range(threads)) / np.float32(x.shape[-1])
"""

exec(edited(__file__, CHANGE))

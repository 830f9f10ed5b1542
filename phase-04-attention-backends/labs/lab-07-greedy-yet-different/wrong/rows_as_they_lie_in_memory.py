"""A norm is left to numpy's mean, which goes along memory.

Row by row that is one order, column by column another.

Refused by `test_a_norm_knows_no_batch`.
"""

from course.learner.edited import edited

CHANGE = """
rms_norm
- variance = fixed_sum(x * x) / np.float32(x.shape[-1])
+ variance = (x * x).mean(axis=-1)
"""

exec(edited(__file__, CHANGE))

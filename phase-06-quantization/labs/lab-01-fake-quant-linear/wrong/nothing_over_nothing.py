"""A row of zeros has a step of 0.

Its weights are divided by it: 0 / 0 is NaN, and what a cast to int8 makes of a NaN is left to the machine.

Refused by `test_zeros_stay_zeros`.
"""

from course.learner.edited import edited

CHANGE = """
choose_scale
- return np.where(scale > 0, scale, np.finfo(np.float32).eps)
+ return scale
"""

exec(edited(__file__, CHANGE))

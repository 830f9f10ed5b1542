"""A row of zeros gets a step of 1.

It comes back as zeros, too. But compressed-tensors gives it float32's epsilon, so this is not the file that
it writes.

Refused by `test_zeros_stay_zeros`.
"""

from course.learner.edited import edited

CHANGE = """
choose_scale
- return np.where(scale > 0, scale, np.finfo(np.float32).eps)
+ return np.where(scale > 0, scale, np.float32(1))
"""

exec(edited(__file__, CHANGE))

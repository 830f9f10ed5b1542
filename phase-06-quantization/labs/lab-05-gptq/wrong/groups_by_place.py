"""The group of a column is its place in the weight divided by the group size.

With act_order a group is a stretch of the order, so its columns are scattered over the weight. That is why
such a checkpoint holds `g_idx`.

Refused by `test_loud_inputs_first`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- return Quantized(codes[:, place], np.hstack(scales), place // group_size)
+ return Quantized(codes[:, place], np.hstack(scales), np.arange(len(h)) // group_size)
"""

exec(edited(__file__, CHANGE))

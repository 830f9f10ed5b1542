"""Codes and scales are multiplied in float16.

That rounds each weight a second time, to three digits, and the grid did not ask for it.

Refused by `test_the_way_back_is_codes_times_steps`.
"""

from course.learner.edited import edited

CHANGE = """
dequantize
- return codes.astype(np.float32) * scale
+ return codes.astype(np.float16) * scale.astype(np.float16)
"""

exec(edited(__file__, CHANGE))

"""Codes and scales are multiplied in the scale's smallest type, float16.

Three digits of a weight are lost a second time, by nothing that the grid asked for.

Refused by `test_the_way_back_is_codes_times_steps`.
"""

from course.learner.edited import edited

CHANGE = """
dequantize
- return codes.astype(np.float32) * scale
+ return codes.astype(np.float16) * scale.astype(np.float16)
"""

exec(edited(__file__, CHANGE))

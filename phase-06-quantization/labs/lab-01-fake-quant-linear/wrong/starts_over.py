"""The cast to int8 takes what was rounded, 128 included.

The largest weight of a row is 127.5 steps, so it may be rounded to 128. A cast does not hold it at 127, it
starts over at -128: the largest weight changes its sign.

Refused by `test_the_largest_weight_does_not_start_over`.
"""

from course.learner.edited import edited

CHANGE = """
quantize
- return np.clip(steps, -128, 127).astype(np.int8)
+ return steps.astype(np.int32).astype(np.int8)
"""

exec(edited(__file__, CHANGE))

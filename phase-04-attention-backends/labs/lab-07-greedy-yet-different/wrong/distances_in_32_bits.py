"""A distance is taken in 32 bits.

From the lowest float32 to the highest there are over 4 billion steps. An int32 ends at half of that and
wraps.

Refused by `test_ulps_count_steps`.
"""

from course.learner.edited import edited

CHANGE = """
ulps
- return np.abs(place(a) - place(b))
+ return np.abs((place(a) - place(b)).astype(np.int32)).astype(np.int64)
"""

exec(edited(__file__, CHANGE))

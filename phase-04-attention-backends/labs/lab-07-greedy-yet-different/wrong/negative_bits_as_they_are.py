"""Bit patterns of negative numbers are taken as they are.

Floats are a sign and a size. Below zero the pattern, read as a whole number, goes up as the float goes
down, and just below 0.0 lies the far end.

Refused by `test_ulps_count_steps`.
"""

from course.learner.edited import edited

CHANGE = """
ulps.place
- return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
+ return bits
"""

exec(edited(__file__, CHANGE))

"""Dead channels are set to 1 in the caller's array.

The calibration is used again, for the next alpha, and then a dead channel looks like one with an input of 1.

Refused by `test_scales_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
smoothing_scales
- usable = (absmax_x > 0) & (absmax_w > 0)
+ usable = (absmax_x > 0) & (absmax_w > 0)
+ absmax_x[~usable] = 1
"""

exec(edited(__file__, CHANGE))

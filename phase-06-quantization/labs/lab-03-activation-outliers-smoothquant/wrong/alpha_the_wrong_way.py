"""alpha and 1 - alpha have changed places.

At 0.5 nobody notices. With alpha 1 all the loudness should be in the weights, and here the inputs keep it.

Refused by `test_scales_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
smoothing_scales
- s[usable] = absmax_x[usable] ** alpha / absmax_w[usable] ** (1 - alpha)
+ s[usable] = absmax_x[usable] ** (1 - alpha) / absmax_w[usable] ** alpha
"""

exec(edited(__file__, CHANGE))

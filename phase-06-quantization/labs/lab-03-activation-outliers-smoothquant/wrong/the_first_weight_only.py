"""s is chosen from the first weight, and used for all.

q, k and v share one norm, so they must share one s. A channel whose loudest weight is in v gets an s that is
too large.

Refused by `test_scales_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
smoothing_scales
- absmax_w = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
+ absmax_w = np.abs(weights[0]).max(axis=0)
"""

exec(edited(__file__, CHANGE))

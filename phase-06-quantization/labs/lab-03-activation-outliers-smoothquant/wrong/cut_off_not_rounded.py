"""Numbers are cut off towards 0 where they should be rounded.

`astype(int)` does that. Every code is then up to a whole step too near 0, never too far, so the sums come out
too small.

Refused by `test_codes_of_a_token`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_activations
- return np.rint(x / scale).astype(np.int32), scale
+ return (x / scale).astype(np.int32), scale
"""

exec(edited(__file__, CHANGE))

"""All tokens of a step share one scale.

Then the loudest token decides how finely all the others are rounded, and what a request gets depends on who
is in the batch. A scale for each token is possible, because it leaves the sum.

Refused by `test_codes_of_a_token`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_activations
- scale = np.abs(x).max(axis=1, keepdims=True) / 127
+ scale = np.broadcast_to(np.abs(x).max() / 127, (len(x), 1))
"""

exec(edited(__file__, CHANGE))

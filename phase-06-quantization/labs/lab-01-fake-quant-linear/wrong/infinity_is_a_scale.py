"""Nobody looks whether the weights are finite.

The largest of a row with an infinity is infinite, so its other weights become 0 steps of infinite size, which
are NaN.

Refused by `test_what_no_step_reaches_is_refused`.
"""

from course.learner.edited import edited

CHANGE = """
choose_scale
- if not np.isfinite(weight).all():
-     bad = weight[~np.isfinite(weight)][0]
-     raise ValueError(f"weights must be finite, got {bad}: no step reaches that")
"""

exec(edited(__file__, CHANGE))

"""The sum of values is divided by l, whatever l is.

A row from which all keys were hidden has l = 0, and 0 / 0 is NaN. One such row in a batch, and everything
that is added to it later is NaN as well. It finishes as 0.

Refused by `test_rows_that_have_seen_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
finish
- out: Floats = np.divide(state.acc, total, out=np.zeros_like(state.acc), where=total > 0)
+ out: Floats = state.acc / total
"""

exec(edited(__file__, CHANGE))

"""Where no key was seen, 0 is taken for the maximum, and kept.

The 0 is there to keep -inf - -inf away. As a maximum it is the largest score of a key that does not exist:
beside it scores of -900 have no weight. vLLM's kernel keeps it, too, and gets away with it while scores
are small.

Refused by `test_rows_that_have_seen_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
update
- m = np.maximum(state.m, scores.max(axis=-1))
  # -inf - -inf is NaN. A row that has seen nothing has nothing to rescale, so any number will do.
- base = np.where(np.isneginf(m), 0.0, m)
+ m = np.maximum(state.m, scores.max(axis=-1))
+ m = base = np.where(np.isneginf(m), 0.0, m)
"""

exec(edited(__file__, CHANGE))

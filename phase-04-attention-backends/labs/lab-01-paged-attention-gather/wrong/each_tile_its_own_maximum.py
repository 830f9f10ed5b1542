"""The maximum is the tile's, and what came before it is left as it was added.

Weights are comparable under one maximum only. It is the larger of the old one and the tile's, so it
never falls, and what is there already is rescaled to it.

Refused by `test_a_tile_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
update
- m = np.maximum(state.m, scores.max(axis=-1))
+ m = scores.max(axis=-1)

update
- rescale = np.exp(state.m - base)
+ rescale = np.ones_like(m)
"""

exec(edited(__file__, CHANGE))

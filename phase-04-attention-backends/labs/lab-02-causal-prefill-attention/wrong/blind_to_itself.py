"""A token's own key is hidden from it.

K and V of the chunk are in the cache before anybody attends, so a token sees itself. Without that the
first token of a prompt sees nothing at all. Later is `>`, not `>=`.

Refused by `test_hide_future`.
"""

from course.learner.edited import edited

CHANGE = """
hide_future
- future = begin + np.arange(scores.shape[-1]) > position[:, None]
+ future = begin + np.arange(scores.shape[-1]) >= position[:, None]
"""

exec(edited(__file__, CHANGE))

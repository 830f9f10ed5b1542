"""A token does not see its own key.

Its K and V were written before attention runs, so that it may look at itself. With `<` the first token of a
prompt sees nothing at all, and its result is 0/0.

Refused by `test_chunks_are_right`.
"""

from course.learner.edited import edited

CHANGE = """
prefill_kernel
- visible = key_position[None, :] <= position[:, None]
+ visible = key_position[None, :] < position[:, None]
"""

exec(edited(__file__, CHANGE))

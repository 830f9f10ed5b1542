"""When a larger score comes, l is rescaled, and the sum of values is not.

What was added to acc under the old maximum is too large now, by the same factor as l was. Both are
multiplied by exp(old m - new m).

Refused by `test_a_tile_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
update
- acc = state.acc * rescale[..., None] + weights @ value
+ acc = state.acc + weights @ value
"""

exec(edited(__file__, CHANGE))

"""The column of an input that was always 0 keeps its weights.

Nothing is known of that input. The column costs nothing while the input is 0, but its weights set the
scale of their group.

Refused by `test_an_input_that_is_always_zero`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- rest[:, np.diag(h) == 0] = 0
+ pass
"""

exec(edited(__file__, CHANGE))

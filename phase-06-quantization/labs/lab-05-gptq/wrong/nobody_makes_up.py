"""Each column is rounded, and the others stay as they are.

That is round-to-nearest, one column at a time. The error of a column is known before the next is rounded, and
as long as columns are left they can take a good part of it back.

Refused by `test_it_is_the_slow_form`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- rest[:, j + 1 :] -= np.outer(error / u[j, j], u[j, j + 1 :])
+ pass
"""

exec(edited(__file__, CHANGE))

"""The inverse of all of H serves every column.

It says what to do where all other columns are free. But those before column j are rounded and will not
move, so the inverse is that of H without them. Row j of U is the first row of that, but for a factor.

Refused by `test_it_is_the_slow_form`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- u = factor(damped(h, damp)[np.ix_(order, order)])
+ u = np.linalg.inv(damped(h, damp)[np.ix_(order, order)])
"""

exec(edited(__file__, CHANGE))

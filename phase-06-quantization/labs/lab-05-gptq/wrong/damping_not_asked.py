"""The damping is a hundredth, whatever the caller asks for.

It works as long as nobody needs more, and few calibration tokens need more.

Refused by `test_it_is_the_slow_form`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- u = factor(damped(h, damp)[np.ix_(order, order)])
+ u = factor(damped(h, 0.01)[np.ix_(order, order)])
"""

exec(edited(__file__, CHANGE))

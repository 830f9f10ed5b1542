"""Numbers that are nearly equal count as equal.

A tolerance is for asking whether two results are both right. Here the question is whether they are the same
one, and the difference begins in the last bit.

Refused by `test_equal_is_equal_to_the_bit`.
"""

from course.learner.edited import edited

CHANGE = """
first_difference
- distance = ulps(a, b)
+ distance = np.where(np.isclose(a, b), 0, ulps(a, b))
"""

exec(edited(__file__, CHANGE))

"""Where neither side has a key, m is -inf, and -inf is taken from -inf.

Ida has 203 tokens and 16 segments, three of which are empty. They meet each other in the tree before they
meet anybody else, and one NaN spoils the rest.

Refused by `test_nothing_is_neutral`.
"""

from course.learner.edited import edited

CHANGE = """
merge
- of_a = np.exp2(a.m - _finite(m))
- of_b = np.exp2(b.m - _finite(m))
+ of_a = np.exp2(a.m - m)
+ of_b = np.exp2(b.m - m)
"""

exec(edited(__file__, CHANGE))

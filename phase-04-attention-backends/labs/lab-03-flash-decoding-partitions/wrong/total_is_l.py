"""The sum of all weights is taken to be l.

l was divided by 2 ** m, and m differs from part to part. What two parts can add is l times 2 ** m.

Refused by `test_total_is_what_m_does_not_change`.
"""

from course.learner.edited import edited

CHANGE = """
total
- unit = Fraction(2) ** int(state.m[row])
+ unit = Fraction(1)
"""

exec(edited(__file__, CHANGE))

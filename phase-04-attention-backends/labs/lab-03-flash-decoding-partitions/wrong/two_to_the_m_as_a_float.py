"""2 ** m is computed in floats, and made a fraction afterwards.

Above 1,023 there is no such float, and far below zero it is 0. Fractions have no end: Fraction(2) ** m.

Refused by `test_total_is_what_m_does_not_change`.
"""

from course.learner.edited import edited

CHANGE = """
total
- unit = Fraction(2) ** int(state.m[row])
+ unit = Fraction(float(np.ldexp(1.0, int(state.m[row]))))
"""

exec(edited(__file__, CHANGE))

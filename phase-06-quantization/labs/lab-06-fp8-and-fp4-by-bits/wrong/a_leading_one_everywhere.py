"""Exponent 0 is read like any other.

Then there is no zero: code 0 becomes 2^-bias, and no number is nearer to 0 than that. A stored
exponent of 0 has no leading 1.

Refused by `test_every_code_has_its_number`.
"""

from course.learner.edited import edited

CHANGE = """
decode
- elif exponent == 0:
+ elif exponent < 0:
"""

exec(edited(__file__, CHANGE))

"""A zero is positive, whatever its sign bit says.

Zeros compare equal, so nobody notices until a code comes back as another one.

Refused by `test_every_code_has_its_number`.
"""

from course.learner.edited import edited

CHANGE = """
decode
- return -number if sign else number
+ return -number if sign and number else number
"""

exec(edited(__file__, CHANGE))

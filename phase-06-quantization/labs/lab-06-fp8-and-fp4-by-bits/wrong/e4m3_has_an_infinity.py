"""In E4M3, too, the code after the largest number is an infinity.

There is one code to spend, and it is NaN.

Refused by `test_every_code_has_its_number`.
"""

from course.learner.edited import edited

CHANGE = """
decode
- infinite = fmt.specials == "ieee" and mantissa == 0
+ infinite = magnitude == largest_code(fmt) + 1
"""

exec(edited(__file__, CHANGE))

"""It stops where its own linears begin to compute.

They still are faster there, because 16 bits go on reading for a while.

Refused by `test_where_4_bits_stop_to_pay`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- if mine >= max(linears_seconds(card, other, 1, tokens)):
+ if mine > linears_seconds(card, scheme, 1, tokens)[0]:
"""

exec(edited(__file__, CHANGE))

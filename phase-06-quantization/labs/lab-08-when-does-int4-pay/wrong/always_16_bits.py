"""It compares with 16 bits, whatever it is asked.

The other scheme may be fp8.

Refused by `test_4_bits_beside_8`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- if mine >= max(linears_seconds(card, other, 1, tokens)):
+ if mine >= max(linears_seconds(card, FP16, 1, tokens)):
"""

exec(edited(__file__, CHANGE))

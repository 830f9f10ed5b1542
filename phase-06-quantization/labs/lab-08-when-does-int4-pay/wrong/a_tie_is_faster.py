"""It takes equally long for faster.

Where both compute, 4 bits and 16 take the same time. That is where it stopped to pay.

Refused by `test_equally_long_is_no_faster`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- if mine >= max(linears_seconds(card, other, 1, tokens)):
+ if mine > max(linears_seconds(card, other, 1, tokens)):
"""

exec(edited(__file__, CHANGE))

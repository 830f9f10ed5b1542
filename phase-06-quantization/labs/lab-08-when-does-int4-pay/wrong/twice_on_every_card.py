"""It takes int8 to be twice as fast as 16 bits on every card.

On an RTX 4090 it is four times. The card says its rates.

Refused by `test_at_which_rate`.
"""

from course.learner.edited import edited

CHANGE = """
product_rate
- return card.int8
+ return 2 * card.flops
"""

exec(edited(__file__, CHANGE))

"""Only what is worse in both numbers is beaten.

A method of the same size that loses more is beaten as well.

Refused by `test_the_edge_of_the_trade_off`.
"""

from course.learner.edited import edited

CHANGE = """
not_beaten
- other[0] <= mine[0] and other[1] <= mine[1] and other != mine
+ other[0] < mine[0] and other[1] < mine[1]
"""

exec(edited(__file__, CHANGE))

"""The gain ends where it turns into a loss.

Most gains do not turn, they fade: from UNDECIDED on nothing is gained either.

Refused by `test_where_the_gain_ends`.
"""

from course.learner.edited import edited

CHANGE = """
gain_ends
- if gains[size].verdict == GAIN:
+ if gains[size].verdict != LOSS:
"""

exec(edited(__file__, CHANGE))

"""The mean of the rounds.

A round in which something else ran pulls it wherever it likes.

Refused by `test_one_bad_round_does_not_decide`.
"""

from course.learner.edited import edited

CHANGE = """
speedup
- return min(ratios), median(ratios), max(ratios)
+ return min(ratios), sum(ratios) / len(ratios), max(ratios)
"""

exec(edited(__file__, CHANGE))

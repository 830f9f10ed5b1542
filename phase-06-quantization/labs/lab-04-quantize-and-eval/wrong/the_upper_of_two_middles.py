"""The middle is the one at half the length.

Of an even number of rounds that is the larger ratio of the two in the middle, so the speedup is flattered.

Refused by `test_one_bad_round_does_not_decide`.
"""

from course.learner.edited import edited

CHANGE = """
speedup
- return min(ratios), median(ratios), max(ratios)
+ return min(ratios), sorted(ratios)[len(ratios) // 2], max(ratios)
"""

exec(edited(__file__, CHANGE))

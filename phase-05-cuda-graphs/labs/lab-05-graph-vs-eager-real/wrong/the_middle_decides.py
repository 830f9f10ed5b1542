"""The verdict looks at the middle pair alone.

If another pair says the opposite, the measurement has not decided. Say so, and measure again.

Refused by `test_all_pairs_must_agree`.
"""

from course.learner.edited import edited

CHANGE = """
gain
- verdict = GAIN if low > 1 else LOSS if high < 1 else UNDECIDED
+ middle = median(ratios)
+ verdict = GAIN if middle > 1 else LOSS if middle < 1 else UNDECIDED
"""

exec(edited(__file__, CHANGE))

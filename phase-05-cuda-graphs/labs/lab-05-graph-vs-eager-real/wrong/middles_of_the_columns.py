"""The middle of the slow times by the middle of the fast ones.

Where the machine drifts, the two middles may come from different rounds. Compare inside of a pair.

Refused by `test_the_middle_pair`.
"""

from course.learner.edited import edited

CHANGE = """
gain
- return Gain(median(ratios), low, high, verdict)
+ slow, fast = zip(*pairs)
+ return Gain(median(slow) / median(fast), low, high, verdict)
"""

exec(edited(__file__, CHANGE))

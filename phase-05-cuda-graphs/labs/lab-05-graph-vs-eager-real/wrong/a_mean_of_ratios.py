"""The mean of the ratios.

One pair that something disturbed pulls it away. The median does not care how far off a pair is.

Refused by `test_the_middle_pair`.
"""

from course.learner.edited import edited

CHANGE = """
gain
- return Gain(median(ratios), low, high, verdict)
+ return Gain(sum(ratios) / len(ratios), low, high, verdict)
"""

exec(edited(__file__, CHANGE))

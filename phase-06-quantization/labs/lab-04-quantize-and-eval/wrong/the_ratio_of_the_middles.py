"""The middle of all befores by the middle of all afters.

They may be from different rounds, so the machine may have been busy for one of them and quiet for the other.

Refused by `test_a_round_has_its_own_ratio`.
"""

from course.learner.edited import edited

CHANGE = """
speedup
- return min(ratios), median(ratios), max(ratios)
+ firsts, seconds = zip(*rounds, strict=True)
+ return min(ratios), median(firsts) / median(seconds), max(ratios)
"""

exec(edited(__file__, CHANGE))

"""The middle of the slow times less the middle of the fast ones.

The middles may come from different rounds of a machine that drifts. Take the difference of each pair first.

Refused by `test_what_a_launch_was_worth`.
"""

from course.learner.edited import edited

CHANGE = """
cost_of_removed
- return median(slow - fast for slow, fast in pairs) / (before - after)
+ slow, fast = zip(*pairs)
+ return (median(slow) - median(fast)) / (before - after)
"""

exec(edited(__file__, CHANGE))

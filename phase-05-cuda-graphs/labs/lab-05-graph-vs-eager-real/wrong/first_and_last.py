"""The line goes through the shortest and the longest chain.

Each of them may be off. All points together say more than two of them.

Refused by `test_the_cost_uses_every_point`.
"""

from course.learner.edited import edited

CHANGE = """
cost_per_operator
- return rise / sum((count - middle) ** 2 for count in counts)
+ (low, first), (high, last) = min(chains), max(chains)
+ return (last - first) / (high - low)
"""

exec(edited(__file__, CHANGE))

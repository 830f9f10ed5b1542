"""The cost of an operator is all seconds divided by all operators.

That puts on the operators what the measurement takes besides them. The slope leaves it out.

Refused by `test_the_cost_is_a_slope`.
"""

from course.learner.edited import edited

CHANGE = """
cost_per_operator
- return rise / sum((count - middle) ** 2 for count in counts)
+ return sum(seconds for _, seconds in chains) / sum(counts)
"""

exec(edited(__file__, CHANGE))

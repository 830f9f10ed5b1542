"""The cost of an operator is all seconds divided by all operators.

That puts on the operators what the measurement takes besides them. The slope leaves it out.

Refused by `test_the_cost_is_a_slope`.
"""

from course.learner.edited import edited

CHANGE = """
cost_per_operator
- return rise / sum((c - middle) ** 2 for c in counts)
+ return mean / middle
"""

exec(edited(__file__, CHANGE))

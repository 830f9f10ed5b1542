"""All rows of a replayed step are called padding.

Padding is what is computed for nobody: the rung less the tokens.

Refused by `test_waste_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
waste
- return Waste(len(fits), len(steps) - len(fits), sum(fits), rows - sum(fits))
+ return Waste(len(fits), len(steps) - len(fits), sum(fits), rows)
"""

exec(edited(__file__, CHANGE))

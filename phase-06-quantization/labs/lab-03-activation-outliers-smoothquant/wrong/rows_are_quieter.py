"""What the norm gains is taken from the weight's rows.

A row is an output, a column an input. Where the two have the same number nothing complains but the result.

Refused by `test_planting_changes_no_output`.
"""

from course.learner.edited import edited

CHANGE = """
plant
- return norm * louder, [weight / louder for weight in weights]
+ return norm * louder, [weight / np.resize(louder, len(weight))[:, None] for weight in weights]
"""

exec(edited(__file__, CHANGE))

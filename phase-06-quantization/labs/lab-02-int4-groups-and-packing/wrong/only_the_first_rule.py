"""The first broken rule ends the search.

A layer may break several rules, and whoever mends one should not have to come back for the next. Look at all
three.

Refused by `test_which_shapes_a_kernel_takes`.
"""

from course.learner.edited import edited

CHANGE = """
refused_by
- return [name for name, holds in checks.items() if not holds]
+ return [name for name, holds in checks.items() if not holds][:1]
"""

exec(edited(__file__, CHANGE))

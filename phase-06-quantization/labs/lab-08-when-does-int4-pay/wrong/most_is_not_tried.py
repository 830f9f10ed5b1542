"""It leaves the last number out.

Up to `most` includes it.

Refused by `test_the_search_ends`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- for tokens in range(1, most + 1):
+ for tokens in range(1, most):
"""

exec(edited(__file__, CHANGE))

"""Tokens are compared place by place, and all that agree are counted.

What stands behind the first difference was computed in the light of another text. Stop there.

Refused by `test_common_prefix`.
"""

from course.learner.edited import edited

CHANGE = """
common_prefix
- for place, (x, y) in enumerate(zip(a, b, strict=False)):
-     if x != y:
-         return place
- return min(len(a), len(b))
+ return sum(x == y for x, y in zip(a, b, strict=False))
"""

exec(edited(__file__, CHANGE))

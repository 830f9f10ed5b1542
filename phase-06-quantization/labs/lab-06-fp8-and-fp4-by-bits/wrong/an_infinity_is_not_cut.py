"""Saturating cuts large numbers off, but infinities stay.

To a GPU's conversion, and to a clamp, an infinity is a large number.

Refused by `test_past_the_end`.
"""

from course.learner.edited import edited

CHANGE = """
encode
- code = largest if saturate or fmt.specials == "none" else largest + 1
+ finite = magnitude < math.inf
+ code = largest if (saturate and finite) or fmt.specials == "none" else largest + 1
"""

exec(edited(__file__, CHANGE))

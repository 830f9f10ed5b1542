"""The zero point is counted in stored scales.

It belongs to the range as it is, so it comes first: smallest and largest weight, scale, zero point, and only
then float16. Where the count is close to a half the two do not agree.

Refused by `test_an_asymmetric_group_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
quantize_groups
- steps = np.divide(-low, exact, out=np.zeros_like(low), where=exact > 0)
+ steps = np.divide(-low, scale, out=np.zeros_like(low), where=exact > 0)
"""

exec(edited(__file__, CHANGE))

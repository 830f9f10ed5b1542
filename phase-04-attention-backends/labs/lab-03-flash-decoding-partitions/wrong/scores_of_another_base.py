"""The scores are scaled for exp, and the weights are powers of two.

2 ** x is larger than it should be nowhere and smaller everywhere: a softmax that is too flat, at a
temperature of 1.44. exp(x) is 2 ** (x log2 e), so log2 e belongs into the scale.

Refused by `test_a_part_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
attend_partial
- scores = query @ key.T * (scale * LOG2_E)
+ scores = query @ key.T * scale
"""

exec(edited(__file__, CHANGE))

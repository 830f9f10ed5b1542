"""The keys are masked at the program's end, and not at each row's.

A program's tokens share the loop, but not the last key that they see: token 3 of 16 must not see the 12
behind it. `valid` protects memory; what a row sees is another mask.

Refused by `test_chunks_are_right`.
"""

from course.learner.edited import edited

CHANGE = """
prefill_kernel
- visible = key_position[None, :] <= position[:, None]
- scores = tl.where(visible, scores, float("-inf"))
+ scores = tl.where(valid[None, :], scores, float("-inf"))
"""

exec(edited(__file__, CHANGE))

"""A block's scale beyond the end of E4M3 becomes NaN, and with it the whole block.

The global scale may come from another tensor, or from yesterday's activations. Then a block can be larger
than anything that was seen when it was chosen.

Refused by `test_a_global_scale_that_does_not_fit`.
"""

from course.learner.edited import edited

CHANGE = """
encode_nvfp4
- code = encode(E4M3, global_scale * max(abs(x) for x in block) / 6, True)
+ code = encode(E4M3, global_scale * max(abs(x) for x in block) / 6, False)
"""

exec(edited(__file__, CHANGE))

"""Numbers are divided by the scale before it was rounded.

The reader multiplies with the stored one, which may be off by 6 %. Divide by that, and the codes make up
for it.

Refused by `test_blocks_of_nvfp4`.
"""

from course.learner.edited import edited

CHANGE = """
encode_nvfp4
- scale = decode(E4M3, code) / global_scale
+ scale = max(abs(x) for x in block) / 6
"""

exec(edited(__file__, CHANGE))

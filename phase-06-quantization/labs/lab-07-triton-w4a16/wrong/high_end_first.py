"""The first input's code is looked for in the highest bits.

On paper one writes a word with its high end to the left. The packing begins at the low end.

Refused by `test_the_product_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
unpack
- shift = tl.arange(0, 8) * 4
+ shift = 28 - tl.arange(0, 8) * 4
"""

exec(edited(__file__, CHANGE))

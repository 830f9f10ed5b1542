"""The tile's number is taken for the group's.

They agree as long as a group is one tile. With two tiles a group, the weights get the scales of groups behind
theirs, and towards the end those of the next output, or what lies behind the tensor.

Refused by `test_the_product_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- scale = tl.load(scale_ptr + output * scale_stride + group, mask=in_outputs, other=0.0)
+ scale = tl.load(scale_ptr + output * scale_stride + tile, mask=in_outputs, other=0.0)
"""

exec(edited(__file__, CHANGE))

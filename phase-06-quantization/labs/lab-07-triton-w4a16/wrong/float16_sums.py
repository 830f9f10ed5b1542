"""The sums are kept in float16.

It holds no number above 65,504, and of a sum of some thousands no fraction. A sum may go far out on its way
and come back; in float16 it becomes infinite and stays so.

Refused by `test_the_product_is_right`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
+ acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float16)

w4a16_kernel
- acc += products * scale.to(tl.float32)[:, None]
+ acc += (products * scale.to(tl.float32)[:, None]).to(tl.float16)
"""

exec(edited(__file__, CHANGE))

"""The mask of the words is counted in inputs, in steps of eight.

It is right, and in groups of 128 always true. But the compiler proves that a mask is one for neighbours only
where what is compared grows by one. So it asks for each word, and loads 32 bits at a time instead of 128.

Refused by `test_compiles_for_four_gpus`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- if GROUP % BLOCK_K != 0:
+ if True:
"""

exec(edited(__file__, CHANGE))

"""With act_order the codes are given back as they were made.

Column 0 of the result is then the loudest input's, and the layer multiplies it with input 0.

Refused by `test_loud_inputs_first`.
"""

from course.learner.edited import edited

CHANGE = """
gptq
- place = np.argsort(order)
- return Quantized(codes[:, place], np.hstack(scales), place // group_size)
+ place = np.argsort(order)
+ return Quantized(codes, np.hstack(scales), place // group_size)
"""

exec(edited(__file__, CHANGE))

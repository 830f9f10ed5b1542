"""Inputs are held against the rule for outputs.

A weight is [out, in] and a kernel's shape K, N is [in, out]: in the source the two stand the other way
round.

Refused by `test_which_shapes_a_kernel_takes`.
"""

from course.learner.edited import edited

CHANGE = """
refused_by
- sizes, inputs, outputs = RULES[kernel]
+ sizes, outputs, inputs = RULES[kernel]
"""

exec(edited(__file__, CHANGE))

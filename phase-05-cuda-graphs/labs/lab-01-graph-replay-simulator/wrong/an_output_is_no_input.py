"""A kernel's output is noted before its inputs are looked at.

A kernel that works in place, as the addition of the residual does, reads a name and then writes it. What it
reads came from outside, and its address has to be known.

Refused by `test_inputs_are_read_before_they_are_written`.
"""

from course.learner.edited import edited

CHANGE = """
inputs_of
- for name in kernel.inputs:
-     if name not in written and name not in names:
-         names.append(name)
- written.add(kernel.output)
+ written.add(kernel.output)
+ for name in kernel.inputs:
+     if name not in written and name not in names:
+         names.append(name)
"""

exec(edited(__file__, CHANGE))

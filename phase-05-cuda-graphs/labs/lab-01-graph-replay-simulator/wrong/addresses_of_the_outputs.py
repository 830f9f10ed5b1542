"""The inputs' addresses are noted when the capture has bound names anew.

A kernel that works in place reads a name and writes it, and behind the capture the name stands for the
output. The next step comes with the very buffer of the capture, and is told that it has moved.

Refused by `test_an_input_that_moved_is_refused`.
"""

from course.learner.edited import edited

CHANGE = """
GraphRunner._capture
- addresses = {name: address(values[name]) for name in inputs_of(self.kernels)}
+ addresses = {name: address(written[name]) for name in inputs_of(self.kernels)}
"""

exec(edited(__file__, CHANGE))

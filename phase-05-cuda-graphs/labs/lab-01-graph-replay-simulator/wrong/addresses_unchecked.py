"""Nobody compares where the inputs lie.

Then an input that was bound to another array is not read, the old one is, and the answer is that of an
older step. vLLM itself compares only while it logs for debugging.

Refused by `test_an_input_that_moved_is_refused`.
"""

from course.learner.edited import edited

CHANGE = """
GraphRunner.__call__
- if address(values[name]) != there:
+ if there is None:
"""

exec(edited(__file__, CHANGE))

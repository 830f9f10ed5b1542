"""What an outside kernel returns stands in `values` as a new array.

The next piece was captured on another one, and reads that. Here the addresses are compared, so it is an
error. vLLM compares none unless it logs for debugging, and the piece would work with the capture's numbers.

Refused by `test_the_outside_is_alive`.
"""

from course.learner.edited import edited

CHANGE = """
PiecewiseGraphRunner.__call__
- if not piecewise:
+ if True:
"""

exec(edited(__file__, CHANGE))

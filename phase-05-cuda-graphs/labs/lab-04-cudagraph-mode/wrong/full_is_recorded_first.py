"""FULL is recorded before the pieces.

The order is the other way round, PIECEWISE and then FULL.

Refused by `test_what_is_recorded_first`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.get_capture_descs
- for mode in (PIECEWISE, FULL):
+ for mode in (FULL, PIECEWISE):
"""

exec(edited(__file__, CHANGE))

"""FULL for all makes uniform keys as well.

It does not tell the kinds apart, so one graph serves both, and the second would be recorded for nothing.

Refused by `test_the_keys_of_each_mode`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.__init__
- if cudagraph_mode.separate_routine() and fits:
+ if cudagraph_mode.decode_mode() is FULL and fits:
"""

exec(edited(__file__, CHANGE))

"""`invalid_modes` is not looked at.

Cascade attention is not in any FULL graph; the replayed step would attend without it.

Refused by `test_forbidden_modes`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.dispatch
- if FULL in allowed and key in self.cudagraph_keys[FULL]:
+ if key in self.cudagraph_keys[FULL]:
"""

exec(edited(__file__, CHANGE))

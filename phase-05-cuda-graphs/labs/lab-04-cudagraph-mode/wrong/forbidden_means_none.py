"""A step that must not be FULL runs without a graph.

Cascade attention forbids FULL alone. Pieces leave attention outside, and stay allowed.

Refused by `test_forbidden_modes`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.dispatch
- if num_tokens >= len(self.padded_to) or allowed == {NONE}:
+ if num_tokens >= len(self.padded_to) or FULL in invalid_modes:
"""

exec(edited(__file__, CHANGE))

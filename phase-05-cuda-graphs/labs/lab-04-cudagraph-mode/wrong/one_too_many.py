"""A step of exactly the top size is above the top.

512 rows were recorded, so 512 tokens fit.

Refused by `test_full_before_pieces`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.dispatch
- if num_tokens >= len(self.padded_to) or allowed == {NONE}:
+ if num_tokens >= len(self.padded_to) - 1 or allowed == {NONE}:
"""

exec(edited(__file__, CHANGE))

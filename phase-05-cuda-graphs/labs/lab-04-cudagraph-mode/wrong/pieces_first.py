"""Pieces are looked for before FULL.

A decode would find pieces at every size, and its FULL graph would never be replayed.

Refused by `test_full_before_pieces`.
"""

from course.learner.edited import edited

CHANGE = """
CudagraphDispatcher.dispatch
- if FULL in allowed and key in self.cudagraph_keys[FULL]:
+ pieces = BatchDescriptor(key.num_tokens)
+ if PIECEWISE in allowed and pieces in self.cudagraph_keys[PIECEWISE]:
+     return PIECEWISE, pieces
+ if FULL in allowed and key in self.cudagraph_keys[FULL]:
"""

exec(edited(__file__, CHANGE))

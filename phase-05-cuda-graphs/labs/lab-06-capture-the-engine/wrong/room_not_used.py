"""Attention returns a tensor of its own, and the next piece is replayed without it.

The piece reads its inputs where they were at capture. There is room for attention's result, which the piece
before has made, and attention must be told to write there.

Refused by `test_mixed_batches_run_in_pieces`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.replay_pieces
- self.model.attention.forward(query, key, value, kv_cache, metadata, room)
+ self.model.attention.forward(query, key, value, kv_cache, metadata)
"""

exec(edited(__file__, CHANGE))

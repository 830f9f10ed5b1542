"""The tiles' scores and values are collected, and softmax comes at the end.

It reads each row once, and it keeps everything: for 4,096 tokens sixteen times the room that 256 take.
On a GPU that room is what a program does not have. Keep the state, and forget the tile.

Refused by `test_one_tile_at_a_time`.
"""

from course.learner.edited import edited

CHANGE = """
decode
- state = update(state, scores, value.swapaxes(0, 1))
+ kept = [(scores, value), *(kept if first else [])]
+ state = empty(grouped.shape[:2], head_size)
+ if first + tile >= seq_len:
+     every = [np.concatenate(part, axis) for part, axis in zip(zip(*kept), (-1, 0))]
+     state = update(state, every[0], every[1].swapaxes(0, 1))
"""

exec(edited(__file__, CHANGE))

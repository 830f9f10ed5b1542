"""The loop goes from block to block.

The result is right, because the state does not care where the keys are cut. But the kernel asked for tiles
of a size, so that a multiprocessor has enough to do, and blocks of 1 would leave it with one key at a time.

Refused by `test_one_tile_at_a_time`.
"""

from course.learner.edited import edited

CHANGE = """
decode
- for first in range(0, seq_len, tile):
-     position = np.arange(first, min(first + tile, seq_len))
+ for first in range(0, seq_len, memory.block_size):
+     position = np.arange(first, min(first + memory.block_size, seq_len))
"""

exec(edited(__file__, CHANGE))

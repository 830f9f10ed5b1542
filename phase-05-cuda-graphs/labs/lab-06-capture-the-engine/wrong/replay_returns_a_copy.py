"""Every replay returns copies of its outputs, to be on the safe side.

Attention then writes its result into a copy of the room, and the next piece reads the room itself. Between
two replays hand on the tensors of the capture; only the last result is copied.

Refused by `test_mixed_batches_run_in_pieces`.
"""

from course.learner.edited import edited

CHANGE = """
Captured.replay
- return output
+ return output.clone() if isinstance(output, Tensor) else tuple(rows.clone() for rows in output)
"""

exec(edited(__file__, CHANGE))

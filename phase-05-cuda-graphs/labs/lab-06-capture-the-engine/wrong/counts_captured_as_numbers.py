"""The number of live rows is taken from Python while capturing, and the graph keeps it.

A Python number is recorded as it was at capture. What changes from step to step must come from a tensor, or
happen after the replay.

Refused by `test_a_long_sequence_is_read_to_its_end`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.capture_full
- seq_lens=self.seq_lens[:size],
+ seq_lens=torch.full_like(self.seq_lens[:size], 1),
"""

exec(edited(__file__, CHANGE))

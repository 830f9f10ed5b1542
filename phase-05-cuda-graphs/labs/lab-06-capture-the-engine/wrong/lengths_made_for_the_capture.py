"""The graph is captured on lengths made for the occasion, from a Python number.

Whatever a step puts into the buffer, the graph reads that other tensor: at best the 1 of the capture, for
ever, at worst what somebody has put into its memory since. Capture on the buffer that steps are filled into.

Refused by `test_a_long_sequence_is_read_to_its_end`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.capture_full
- seq_lens=self.seq_lens[:size],
+ seq_lens=torch.full_like(self.seq_lens[:size], 1),
"""

exec(edited(__file__, CHANGE))

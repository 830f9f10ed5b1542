"""The warm-up runs on what lies in the buffers.

At the start these are zeros, and all is well. Where a step was there before, its slots are there still, and
the warm-up writes K and V into somebody's blocks. Fill in slots that nobody has.

Refused by `test_capture_writes_to_nobodys_slot`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.capture_pieces
- self.slot_mapping.fill_(PAD_SLOT_ID)

CaptureRunner.capture_full
- self.slot_mapping.fill_(PAD_SLOT_ID)
"""

exec(edited(__file__, CHANGE))

"""The whole model is warmed up on whatever slots lie in the buffer.

A capture computes nothing, but the call before it does, and writes K and V. Put slot -1 into every row
first.

Refused by `test_capture_writes_to_nobodys_slot`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.capture_full
- self.slot_mapping.fill_(PAD_SLOT_ID)
"""

exec(edited(__file__, CHANGE))

"""The rows of padding keep the slots that an earlier step left in the buffer.

Their K and V are written like anybody's, into the cache of whoever had the slot, or has it now. Slot -1
says that a row is written nowhere.

Refused by `test_padding_writes_to_nobodys_slot`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.fill
- slot_mapping=put(self.slot_mapping, metadata.slot_mapping, size, PAD_SLOT_ID),
+ slot_mapping=(put(self.slot_mapping, metadata.slot_mapping, 0), self.slot_mapping[:size])[1],
"""

exec(edited(__file__, CHANGE))

"""A step's token ids get a tensor of their own, under the name of the buffer.

The graph knows no names. It reads the address that it was captured on, and there stands an old step, or
nothing.

Refused by `test_two_decodes_each_from_their_own_inputs`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.fill
- put(self.input_ids, input_ids, size)
+ self.input_ids = torch.zeros_like(self.input_ids)
+ put(self.input_ids, input_ids, size)
"""

exec(edited(__file__, CHANGE))

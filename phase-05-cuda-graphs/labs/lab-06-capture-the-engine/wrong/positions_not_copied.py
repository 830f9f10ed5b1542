"""Ids are copied, positions are not.

A decode replays with the position of an earlier step: the token stands in the wrong place, and a model that
turns query and key by their position sees another distance. Copy every input that changes from step to
step.

Refused by `test_two_decodes_each_from_their_own_inputs`.
"""

from course.learner.edited import edited

CHANGE = """
CaptureRunner.fill
- put(self.positions, positions, size)
"""

exec(edited(__file__, CHANGE))

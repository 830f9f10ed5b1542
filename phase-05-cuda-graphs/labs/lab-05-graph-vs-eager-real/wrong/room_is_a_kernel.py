"""Allocations are counted.

`empty` asks the allocator for memory, and leaves in it what was there. No kernel runs.

Refused by `test_room_is_not_a_kernel`.
"""

from course.learner.edited import edited

CHANGE = """
count_operators.Counter.__torch_dispatch__
- if name not in ALLOCATIONS and not view:
+ if not view:
"""

exec(edited(__file__, CHANGE))

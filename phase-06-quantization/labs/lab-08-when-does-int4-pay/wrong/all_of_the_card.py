"""It gives all memory away.

vLLM takes 0.92 of it by default (`gpu_memory_utilization`).

Refused by `test_room_for_people`.
"""

from course.learner.edited import edited

CHANGE = """
people_at_once
- room = 0.92 * card.memory - resident_bytes(model, scheme)
+ room = card.memory - resident_bytes(model, scheme)
"""

exec(edited(__file__, CHANGE))

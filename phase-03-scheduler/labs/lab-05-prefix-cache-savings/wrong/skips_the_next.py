"""The list gets shorter by a victim that stood before, and the place in it stays.

Then the next request is passed over. Move the place back with it.

Refused by `test_a_victim_gives_back_its_place_and_its_budget`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- place -= 1
"""

exec(edited(__file__, CHANGE))

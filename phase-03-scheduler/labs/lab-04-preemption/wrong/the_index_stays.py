"""The list moves up, and the index does not.

When somebody before you leaves a list, whoever comes next stands where you are. Take one from the index,
or the next one is skipped.

Refused by `test_nobody_is_skipped_behind_a_victim`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- req_index -= 1
"""

exec(edited(__file__, CHANGE))

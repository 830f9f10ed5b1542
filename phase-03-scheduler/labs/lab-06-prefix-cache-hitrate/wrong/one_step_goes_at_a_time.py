"""A step that comes drives at most one step out.

It may bring more look-ups than the oldest one had. So go on until there is room, or until the newest is
alone.

Refused by `test_the_window_forgets_whole_steps`.
"""

from course.learner.edited import edited

CHANGE = """
line_rate
- while len(window) > 1 and num_lookups > most:
+ if len(window) > 1 and num_lookups > most:
"""

exec(edited(__file__, CHANGE))

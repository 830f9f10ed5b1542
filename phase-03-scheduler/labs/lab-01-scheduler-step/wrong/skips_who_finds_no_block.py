"""Somebody who runs and finds no block is passed over, and those behind are served.

Blocks go in order. The loop ends there (and in lab 03-04 somebody else loses his).

Refused by `test_blocks_for_whoever_runs`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
  if new_blocks is None:
-     break
+     continue
"""

exec(edited(__file__, CHANGE))

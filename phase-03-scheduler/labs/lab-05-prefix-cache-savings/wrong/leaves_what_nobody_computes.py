"""A victim that was served already leaves its new blocks published.

Nobody computes them, and whoever finds them reads what an earlier holder left. Call
`_evict_uncomputed_blocks` before the blocks are freed.

Refused by `test_a_victim_takes_back_what_nobody_computes`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_running
- self._evict_uncomputed_blocks(victim)
"""

exec(edited(__file__, CHANGE))

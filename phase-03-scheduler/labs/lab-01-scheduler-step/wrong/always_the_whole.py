"""The whole sequence must always fit.

The user may switch that off: hand over `scheduler_reserve_full_isl`, not True.

Refused by `test_all_of_it_must_fit`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
+ full_sequence_must_fit=True,
"""

exec(edited(__file__, CHANGE))

"""What was found is not handed to `allocate_slots`.

Then the blocks are not held, and the tokens found have no slots in the request's table.

Refused by `test_a_newcomer_starts_behind_what_is_found`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- num_new_computed_tokens=num_hits,
- new_computed_blocks=hits,
"""

exec(edited(__file__, CHANGE))

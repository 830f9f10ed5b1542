"""Who has output comes back, everybody else is new.

A request may lose its blocks in the middle of its prompt, and the worker knows it then. Ask for the
status.

Refused by `test_who_has_no_answer_yet_is_resumed_too`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._schedule_waiting
- if request.status is RequestStatus.PREEMPTED:
+ if request.num_output_tokens:
"""

exec(edited(__file__, CHANGE))

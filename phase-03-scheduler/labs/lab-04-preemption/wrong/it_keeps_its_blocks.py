"""The victim waits, and its blocks are still its own.

Then nothing has become free, and the next one is preempted for nothing, and the next. Call
`kv_cache_manager.free`.

Refused by `test_the_last_of_the_running_loses`.
"""

from course.learner.edited import edited

CHANGE = """
Scheduler._preempt_request
- self.kv_cache_manager.free(request)
"""

exec(edited(__file__, CHANGE))

"""Any base with `Async` in its name will do.

A name like that promises nothing: `AsyncScheduler` itself has to be among the bases.

Refused by `test_the_base_class_must_fit`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- plans_ahead = any(one.__name__ == "AsyncScheduler" for one in base.__mro__)
+ plans_ahead = any("Async" in one.__name__ for one in base.__mro__)
"""

exec(edited(__file__, CHANGE))

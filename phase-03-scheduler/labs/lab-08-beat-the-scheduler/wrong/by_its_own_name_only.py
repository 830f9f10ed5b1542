"""It wants a base that is called `AsyncScheduler`.

A subclass of it has another name and plans ahead all the same. Look at all bases.

Refused by `test_the_base_class_must_fit`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- plans_ahead = any(one.__name__ == "AsyncScheduler" for one in base.__mro__)
+ plans_ahead = base.__name__ == "AsyncScheduler"
"""

exec(edited(__file__, CHANGE))

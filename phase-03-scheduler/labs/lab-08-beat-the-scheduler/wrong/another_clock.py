"""It measures the time with `time.monotonic`.

That clock counts from the machine's start, and arrival times count from 1970: everybody would have
waited for minus half a century.

Refused by `test_the_clock_is_the_one_of_the_arrivals`.
"""

from course.learner.edited import edited

CHANGE = """
make_scheduler
- clock: Callable[[], float] = staticmethod(time.time)
+ clock: Callable[[], float] = staticmethod(time.monotonic)
"""

exec(edited(__file__, CHANGE))

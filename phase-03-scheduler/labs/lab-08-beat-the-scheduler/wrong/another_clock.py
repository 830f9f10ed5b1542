"""It measures the time with `time.monotonic`.

That clock counts from the machine's start, and arrival times count from 1970: everybody would have
waited for minus half a century.

Refused by `test_the_clock_is_the_one_of_the_arrivals`.
"""

from __future__ import annotations

import time
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    class PolicyScheduler(solution.make_scheduler(base, policy)):  # type: ignore[misc]
        clock = staticmethod(time.monotonic)

    return PolicyScheduler

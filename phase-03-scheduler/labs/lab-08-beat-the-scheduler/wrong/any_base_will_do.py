"""It extends what it is given and asks nothing.

With asynchronous scheduling a base that waits for results sees requests with nothing to compute: half
of them sit out each step.

Refused by `test_the_base_class_must_fit`.
"""

from __future__ import annotations

import time
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    class PolicyScheduler(base):  # type: ignore[misc]
        clock = staticmethod(time.time)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            solution.reorder(self.waiting, policy, self.clock())
            return super().schedule(*args, **kwargs)

    return PolicyScheduler

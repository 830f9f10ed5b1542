"""It sorts a copy of the queue.

The scheduler goes on with its own queue, which nobody has touched.

Refused by `test_the_smallest_key_comes_first`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def reorder(queue: Any, policy: Any, now: float) -> None:
    requests = list(queue)
    requests.sort(key=lambda request: policy(request, now))


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    class PolicyScheduler(solution.make_scheduler(base, policy)):  # type: ignore[misc]
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            reorder(self.waiting, policy, self.clock())
            return base.schedule(self, *args, **kwargs)

    return PolicyScheduler

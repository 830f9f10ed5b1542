"""It takes out for as long as more is in the queue than in the list.

Taking out makes the queue shorter while the list grows, so half of them stay where they were, in
front of those that were sorted.

Refused by `test_nobody_is_lost_and_nobody_comes_twice`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def reorder(queue: Any, policy: Any, now: float) -> None:
    requests: list[Any] = []
    while len(queue) > len(requests):
        requests.append(queue.pop_request())
    for request in sorted(requests, key=lambda request: policy(request, now)):
        queue.add_request(request)


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    class PolicyScheduler(solution.make_scheduler(base, policy)):  # type: ignore[misc]
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            reorder(self.waiting, policy, self.clock())
            return base.schedule(self, *args, **kwargs)

    return PolicyScheduler

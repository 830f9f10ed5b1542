"""The waiting are served before the running.

Somebody reads along with those who run. They come first, and newcomers get what is left.

Refused by `test_the_running_are_served_first`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.Scheduler


class Scheduler(Right):
    def _schedule_running(self, step: Any) -> None:
        before = list(self.running)
        Right._schedule_waiting(self, step)
        newcomers = [request for request in self.running if request not in before]
        self.running[:] = before
        Right._schedule_running(self, step)
        self.running.extend(newcomers)

    def _schedule_waiting(self, step: Any) -> None:
        pass


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

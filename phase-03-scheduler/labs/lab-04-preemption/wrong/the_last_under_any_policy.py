"""Under priority, too, the last of the running list goes.

There the list's order is that of admission. Whom the users find least important, the number says.

Refused by `test_the_least_important_loses`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _pop_victim(self) -> Request:
        if True:
            return self.running.pop()
        victim = max(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
        self.running.remove(victim)
        return victim


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

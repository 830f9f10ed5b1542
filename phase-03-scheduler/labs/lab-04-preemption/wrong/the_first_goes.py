"""The first of the running list loses its blocks.

It has been there longest and has the most to lose, and if it never gets to its end nobody does. Pop from
the end.

Refused by `test_the_last_of_the_running_loses`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request
from mini_vllm.request_queue import SchedulingPolicy

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _pop_victim(self) -> Request:
        if self.policy is SchedulingPolicy.FCFS:
            return self.running.pop(0)
        victim = max(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
        self.running.remove(victim)
        return victim


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

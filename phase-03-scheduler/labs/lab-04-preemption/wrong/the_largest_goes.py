"""The request with the most tokens loses its blocks, because that frees the most.

It is the one that costs most to compute again, and perhaps the first of all. FCFS takes the last.

Refused by `test_as_many_victims_as_it_takes`.
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
            largest = max(reversed(self.running), key=lambda r: r.num_tokens)
            self.running.remove(largest)
            return largest
        victim = max(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
        self.running.remove(victim)
        return victim


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

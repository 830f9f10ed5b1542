"""Equal priority, equal arrival: whoever stands first in the list goes.

So each of two equals is preempted for the other in turn, and neither ends. (vLLM 0.22.1 does this.) Let the
id decide, as the queue does.

Refused by `test_equals_do_not_take_turns`.
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
            return self.running.pop()
        victim = max(self.running, key=lambda r: (r.priority, r.arrival_time))
        self.running.remove(victim)
        return victim


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

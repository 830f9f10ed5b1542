"""The victim waits, and its blocks are still its own.

Then nothing has become free, and the next one is preempted for nothing, and the next. Call
`kv_cache_manager.free`.

Refused by `test_the_last_of_the_running_loses`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request, RequestStatus

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _preempt_request(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

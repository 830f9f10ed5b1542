"""The victim starts over from its prompt.

Its reader has those tokens on the screen. Only KV is lost, and KV can be computed again.

Refused by `test_what_a_victim_keeps`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request, RequestStatus

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _preempt_request(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.output_token_ids.clear()
        request.all_token_ids = list(request.prompt_token_ids)
        request.num_tokens = request.num_prompt_tokens
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

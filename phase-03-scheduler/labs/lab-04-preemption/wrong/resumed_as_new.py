"""Whoever comes back is sent as a newcomer.

The worker has him already. Ask the status before you change it.

Refused by `test_who_comes_back_is_resumed`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import RequestStatus

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _schedule_waiting(self, step: Any) -> None:
        while (
            len(self.waiting)
            and len(self.running) < self.max_num_running_reqs
            and step.token_budget > 0
        ):
            request = self.waiting.peek_request()
            num_new_tokens = solution.clamp(
                request.num_tokens, self.long_prefill_token_threshold, step.token_budget
            )
            new_blocks = self.kv_cache_manager.allocate_slots(
                request,
                num_new_tokens,
                full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
            )
            if new_blocks is None:
                break
            self.waiting.pop_request()
            self.running.append(request)
            step.scheduled_new_reqs.append(request)
            request.status = RequestStatus.RUNNING
            request.num_cached_tokens = 0
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

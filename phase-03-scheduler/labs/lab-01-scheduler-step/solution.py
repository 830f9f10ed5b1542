"""Lab 03-01: the reference solution."""

from __future__ import annotations

from typing import Any

from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given


def predictions() -> dict[str, Any]:
    return {
        "three prompts of 8": {"ann": 8, "ben": 2},
        "ten people, four seats": 4,
        "a stream and a prompt of 20": {"eve": 1, "fay": 15},
        "threshold 6": {"fay": 6, "gil": 6, "hal": 4},
    }


def clamp(num_new_tokens: int, threshold: int, token_budget: int) -> int:
    if 0 < threshold < num_new_tokens:
        num_new_tokens = threshold
    return min(num_new_tokens, token_budget)


class Scheduler(given.Scheduler):
    def _serve(self, step: Any, request: Any, num_new_tokens: int, new_blocks: Any) -> None:
        """Note in the step that a running request gets these tokens and blocks (given)."""
        step.scheduled_running_reqs.append(request)
        self._note(step, request, num_new_tokens, new_blocks)

    def _admit(self, step: Any, num_new_tokens: int, new_blocks: Any) -> None:
        """Move the head of the queue to the end of `running`, and note it in the step (given)."""
        request = self.waiting.pop_request()
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_cached_tokens = 0
        step.scheduled_new_reqs.append(request)
        self._note(step, request, num_new_tokens, new_blocks)

    def _note(self, step: Any, request: Any, num_new_tokens: int, new_blocks: Any) -> None:
        """Note what the step needs to know of each request, and take its tokens off the budget (given)."""
        step.req_to_new_blocks[request.request_id] = new_blocks
        step.num_scheduled_tokens[request.request_id] = num_new_tokens
        step.token_budget -= num_new_tokens

    def _schedule_running(self, step: Any) -> None:
        for request in self.running:
            if step.token_budget == 0:
                break
            num_new_tokens = clamp(
                request.num_tokens - request.num_computed_tokens,
                self.long_prefill_token_threshold,
                step.token_budget,
            )
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            if new_blocks is None:
                break
            self._serve(step, request, num_new_tokens, new_blocks)

    def _schedule_waiting(self, step: Any) -> None:
        while (
            len(self.waiting)
            and len(self.running) < self.max_num_running_reqs
            and step.token_budget > 0
        ):
            request = self.waiting.peek_request()
            num_new_tokens = clamp(
                request.num_tokens, self.long_prefill_token_threshold, step.token_budget
            )
            new_blocks = self.kv_cache_manager.allocate_slots(
                request,
                num_new_tokens,
                full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
            )
            if new_blocks is None:
                break
            self._admit(step, num_new_tokens, new_blocks)

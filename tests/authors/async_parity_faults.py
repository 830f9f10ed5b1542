"""Asynchronous schedulers with one mistake each, and what `course.parity` has to say about it."""

from __future__ import annotations

from typing import Any

from mini_vllm.core.request import Request
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler


class PlansTooFar(AsyncScheduler):
    """Counts the token in flight, but not that it may be the last."""

    def _count_new_tokens(self, request: Request) -> int:
        ahead = request.num_tokens + request.num_output_placeholders
        return min(ahead, self.max_model_len - 1) - request.num_computed_tokens


class WaitsForResults(AsyncScheduler):
    """Plans nothing for a request while a token of it is in flight."""

    def _count_new_tokens(self, request: Request) -> int:
        if request.num_output_placeholders:
            return 0
        return super()._count_new_tokens(request)


class PlaceholderForEveryChunk(AsyncScheduler):
    """Leaves a placeholder where a prompt is still being computed."""

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in scheduler_output.num_scheduled_tokens:
            if self.requests[request_id].is_prefill_chunk:
                self.requests[request_id].num_output_placeholders += 1


class VictimsLoseTheirToken(AsyncScheduler):
    """Throws away the token of a request that was preempted while it was in flight."""

    def _preempt_request(self, request: Request) -> None:
        self._discard_latest_async_tokens(request)
        super()._preempt_request(request)


class PublishesTheTokenInFlight(AsyncScheduler):
    """Counts what is in flight as known when it publishes."""

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        running = request in self.running
        answer = super()._update_request_with_output(request, new_token_ids)
        if running:
            self.kv_cache_manager.cache_blocks(request, request.num_tokens)
        return answer


FAULTS: dict[str, tuple[Any, str]] = {
    "plans too far": (PlansTooFar, "In flight: tokens that are being sampled count"),
    "waits for results": (WaitsForResults, "Budget: running requests come first"),
    "a placeholder for every chunk": (
        PlaceholderForEveryChunk,
        "Placeholder: a plan that computes",
    ),
    "victims lose their token": (VictimsLoseTheirToken, "Stop: checked after each appended token"),
    "publishes the token in flight": (
        PublishesTheTokenInFlight,
        "Hit length: a request that is admitted",
    ),
    "synchronous": (Scheduler, "Placeholder"),
}

"""The scheduler that plans a step before it knows what the step before has sampled.

Mirrors `vllm/v1/core/sched/async_scheduler.py` (`AsyncScheduler` 12) and the clauses of
`vllm/v1/core/sched/scheduler.py` that matter only then. A GPU runs it by default at the pin, so that
it never waits for a plan; a CPU does not.

A token that is being sampled has a place in the sequence before it has a value. Such a place is an
**output placeholder**: the request is planned as if it had the token, and the worker, which knows
the value first, puts it there. What needs the value waits for it: EOS, stop tokens, block hashes.
So a request that ends by EOS has been planned once more by then, and that row's result is dropped,
while one that ends by its length has not, since lengths can be counted.

Left out: draft tokens (a plan leaves one placeholder, never several), structured output, pipeline
parallelism (two plans are on their way, never more).
"""

from __future__ import annotations

from typing import Any

from mini_vllm.request import Request, RequestStatus
from mini_vllm.sched_output import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.scheduler import Scheduler, _Step


class AsyncScheduler(Scheduler):
    """`Scheduler`, with up to two plans made whose results are not in.

    `schedule` may be called again before `update_from_output` has been called for the plan before.
    Results are to be handed in in the order of the plans.

    Both differences on purpose hold here too (see `mini_vllm/scheduler.py`). A victim that the same
    step had scheduled keeps published what plans in flight compute for it, because the worker
    carries those out first; what this plan alone would have computed is un-published.

    Source: `vllm/v1/core/sched/async_scheduler.py:12 AsyncScheduler`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Results on their way for requests that have ended, by id: see `add_request`.
        self._ownerless_tokens: dict[str, int] = {}

    def add_request(self, request: Request) -> None:
        """As `Scheduler.add_request`. An id may be taken again as soon as it is free, so a token may
        still be on its way to who had it before; it is not the newcomer's.

        Upstream adds random characters to each id, which cannot meet again
        (`vllm/v1/engine/input_processor.py:215 InputProcessor.assign_request_id`).
        """
        super().add_request(request)
        request.async_tokens_to_discard = self._ownerless_tokens.pop(request.request_id, 0)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """As `Scheduler.reset_prefix_cache`. Tokens on their way to the running requests were
        computed with what is to be forgotten: they are dropped when they come, and sampled anew."""
        if reset_running_requests:
            for request in self.running:
                request.async_tokens_to_discard += request.num_output_placeholders
                request.num_output_placeholders = 0
        return super().reset_prefix_cache(reset_running_requests)

    def _make_cached_request_data(self, step: _Step) -> CachedRequestData:
        """Tells the worker how many of the tokens that it has sampled hold: it may have dropped ones."""
        data = super()._make_cached_request_data(step)
        requests = (self.requests[req_id] for req_id in data.req_ids)
        data.num_output_tokens = [
            request.num_output_tokens + request.num_output_placeholders for request in requests
        ]
        return data

    def _num_missing_tokens(self, request: Request) -> int:
        """What the next plan is to compute of a running request: placeholders count as tokens.

        0 if there is nothing to do before a result comes: its last token is in flight already, by
        `max_tokens` (`vllm/v1/core/sched/scheduler.py:369 in Scheduler.schedule`) or by
        `max_model_len`, whose last token is never an input (396).
        """
        num_computed_tokens = request.num_computed_tokens
        num_output_placeholders = request.num_output_placeholders
        if num_output_placeholders > 0:
            # As if of the tokens in flight one counted, which is all there are between two turns.
            num_tokens_then = num_computed_tokens + 1 - (num_output_placeholders - 1)
            if num_tokens_then >= request.num_prompt_tokens + request.max_tokens:
                return 0
        return min(
            request.num_tokens + num_output_placeholders - num_computed_tokens,
            self.max_model_len - 1 - num_computed_tokens,
        )

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """Advance the counters, and leave a placeholder where the plan samples a token."""
        super()._update_after_schedule(scheduler_output)
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[req_id]
            request.is_prefill_chunk = (
                request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            )
            if not request.is_prefill_chunk:
                request.num_output_placeholders += 1

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """As `Scheduler.update_from_output`; rows of requests that have ended are passed over."""
        if self._ownerless_tokens:
            self._drop_ownerless_tokens(model_runner_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        """Put the token in its placeholder's place, and publish the blocks that are known now."""
        if request.async_tokens_to_discard > 0:
            request.async_tokens_to_discard -= 1
            return [], False
        status_before_update = request.status
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids)
        request.num_output_placeholders -= 1
        assert request.num_output_placeholders >= 0
        if status_before_update is RequestStatus.RUNNING:  # else it was preempted and holds nothing
            num_known_tokens = request.num_computed_tokens - request.num_output_placeholders
            self.kv_cache_manager.cache_blocks(request, num_known_tokens)
        return new_token_ids, stopped

    def _free_request(self, request: Request) -> None:
        super()._free_request(request)
        in_flight = request.num_output_placeholders + request.async_tokens_to_discard
        if in_flight:
            self._ownerless_tokens[request.request_id] = in_flight

    def _drop_ownerless_tokens(self, model_runner_output: ModelRunnerOutput) -> None:
        """Count the rows that come for nobody."""
        for req_id in list(self._ownerless_tokens):
            index = model_runner_output.req_id_to_index.get(req_id)
            if index is not None and model_runner_output.sampled_token_ids[index]:
                self._ownerless_tokens[req_id] -= 1
                if not self._ownerless_tokens[req_id]:
                    del self._ownerless_tokens[req_id]

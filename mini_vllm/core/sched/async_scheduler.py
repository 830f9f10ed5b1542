"""The scheduler that plans a step before it knows what the step before has sampled.

Mirrors `vllm/v1/core/sched/async_scheduler.py` (`AsyncScheduler` 12) and the clauses of
`vllm/v1/core/sched/scheduler.py` that matter only then. A GPU runs it by default at the pin, so that
it never waits for a plan; a CPU does not.

A token that is being sampled has a place in the sequence before it has a value. Such a place is an
**output placeholder**: the request is planned as if it had the token, and the worker, which knows
the value first, puts it there. What needs the value waits for it: EOS, stop tokens, block hashes.
So a request that ends by EOS has been planned once more by then, and that row's result is dropped,
while one that ends by its length has not, since lengths can be counted.

With drafts a plan leaves one placeholder more for each, and the worker fills them too: with what it has
drafted. What is rejected is taken back from the counts when the result comes.

Invariant, asserted where a result comes in:

* I14  A request has a placeholder for each token that steps in flight may still give it, and no other: what
       was rejected is taken off once, and so is each token that came. So there are never fewer than 0.

Left out: pipeline parallelism (two plans are on their way, never more).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.step import Step


class AsyncScheduler(Scheduler):
    """`Scheduler`, with up to two plans made whose results are not in.

    `schedule` may be called again before `update_from_output` has been called for the plan before.
    Results are to be handed in in the order of the plans.

    Both differences on purpose hold here too (see `scheduler.py`). A victim that the same
    step had scheduled keeps published what plans in flight compute for it, because the worker
    carries those out first; what this plan alone would have computed is un-published.

    Source: `vllm/v1/core/sched/async_scheduler.py:12 AsyncScheduler`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_draft_slots *= 2  # two plans': the drafts of the one in flight count as accepted
        # Request id -> results on their way that are void: with drafts a result is several tokens.
        # Results come in order, so they are the next that come for this id, even if another request has
        # taken it by then. Upstream counts them in the request, as its ids end in random characters
        # and never meet again.
        self.async_tokens_to_discard: dict[str, int] = {}
        self._spec_token_placeholders = [-1] * self.num_spec_tokens
        self._results_in_flight: dict[str, int] = {}  # by request id; kept with drafts only

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """As `Scheduler.reset_prefix_cache`. Tokens on their way to the running requests were
        computed with what is to be forgotten: they are dropped when they come, and sampled anew."""
        if reset_running_requests:
            for request in self.running:
                self._discard_latest_async_tokens(request)
        return super().reset_prefix_cache(reset_running_requests)

    def _discard_latest_async_tokens(self, request: Request) -> None:
        """Drop the results that are on their way to the request."""
        num_results = self._num_results_in_flight(request)
        if num_results:
            before = self.async_tokens_to_discard.get(request.request_id, 0)
            self.async_tokens_to_discard[request.request_id] = before + num_results
        request.num_output_placeholders = 0
        self._results_in_flight.pop(request.request_id, None)

    def _num_results_in_flight(self, request: Request) -> int:
        """Without drafts a result is one token. vLLM counts tokens with drafts too, drops one result for
        each of them, and so loses results that hold (see `upstream_scheduler.py`)."""
        if self.num_spec_tokens:
            return self._results_in_flight.get(request.request_id, 0)
        return request.num_output_placeholders

    def _make_cached_request_data(self, step: Step) -> CachedRequestData:
        """Tells the worker how many of the tokens that it has sampled hold: it may have dropped ones."""
        data = super()._make_cached_request_data(step)
        requests = (self.requests[req_id] for req_id in data.req_ids)
        data.num_output_tokens = [
            request.num_output_tokens + request.num_output_placeholders for request in requests
        ]
        return data

    def _count_new_tokens(self, request: Request) -> int:
        """What the next plan is to compute of a running request whose newest tokens are in flight: those
        tokens, as if they were there, and drafts for what comes after.

        0 if a result must come first, because even with all drafts rejected the token in flight is the
        last: by `max_tokens` (`vllm/v1/core/sched/scheduler.py:369 in Scheduler.schedule`), or by
        `max_model_len`, whose last token is never an input (396).
        """
        num_computed_tokens = request.num_computed_tokens
        num_output_placeholders = request.num_output_placeholders
        if num_output_placeholders > 0:
            # Computed, less the drafts among it, and one more: what there is at the least.
            num_tokens_after_step = num_computed_tokens + 2 - num_output_placeholders
            if num_tokens_after_step >= request.num_prompt_tokens + request.max_tokens:
                return 0
        num_new_tokens = request.num_tokens + num_output_placeholders - num_computed_tokens
        if self.num_spec_tokens:
            num_new_tokens += len(request.spec_token_ids)
        return min(num_new_tokens, self.max_model_len - 1 - num_computed_tokens)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """Advance the counters, and leave a placeholder where the plan samples a token."""
        super()._update_after_schedule(scheduler_output)
        drafting = self.num_spec_tokens > 0
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[req_id]
            request.is_prefill_chunk = (
                request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            )
            if not request.is_prefill_chunk:
                request.num_output_placeholders += 1
                if drafting:
                    self._leave_draft_placeholders(request, scheduler_output)

    def _leave_draft_placeholders(
        self, request: Request, scheduler_output: SchedulerOutput
    ) -> None:
        """One more for each draft of this plan, and as many as can be for those of the next."""
        req_id = request.request_id
        drafts = scheduler_output.scheduled_spec_decode_tokens.get(req_id, ())
        request.num_output_placeholders += len(drafts)
        request.spec_token_ids = self._spec_token_placeholders
        self._results_in_flight[req_id] = self._results_in_flight.get(req_id, 0) + 1

    def _mark_prefill_chunks(self, scheduler_output: SchedulerOutput) -> None:
        """Nothing: `_update_after_schedule` says it of every request, with drafts and without."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """As `Scheduler.update_from_output`, without the tokens that are void."""
        if self.async_tokens_to_discard:
            model_runner_output = self._without_void_tokens(model_runner_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _without_void_tokens(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        sampled_token_ids = list(output.sampled_token_ids)
        for req_id, count in list(self.async_tokens_to_discard.items()):
            index = output.req_id_to_index.get(req_id)
            if index is None or not sampled_token_ids[index]:
                continue
            sampled_token_ids[index] = []
            if count > 1:
                self.async_tokens_to_discard[req_id] = count - 1
            else:
                del self.async_tokens_to_discard[req_id]
        return replace(output, sampled_token_ids=sampled_token_ids)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        """Put the tokens in their placeholders' places, and publish the blocks that are known now.

        One that was preempted in between keeps the token, and may end by it while it waits.
        """
        status_before_update = request.status
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids)
        request.num_output_placeholders -= 1
        if self.num_spec_tokens:
            request.num_output_placeholders -= len(new_token_ids) - 1
            self._results_in_flight[request.request_id] -= 1
        left = request.num_output_placeholders
        assert left >= 0, (
            f"I14: {left} placeholders of {request.request_id}: more came off than steps in flight had left"
        )
        if status_before_update is RequestStatus.RUNNING:
            num_known_tokens = request.num_computed_tokens - request.num_output_placeholders
            self.kv_cache_manager.cache_blocks(request, num_known_tokens)
        return new_token_ids, stopped

    def _free_request(self, request: Request) -> None:
        super()._free_request(request)
        self._discard_latest_async_tokens(request)

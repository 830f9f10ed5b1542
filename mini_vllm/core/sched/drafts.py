"""What the scheduler does about drafts: tokens that were guessed, and that a step only checks.

A draft is a token of the step like any other: it counts in `num_scheduled_tokens`, it needs a slot and it
is paid for from the budget. So `Scheduler` plans it in its one loop, and what is left for drafts alone
stands here: cut them to the room that there is, take the rejected ones back, and take new ones in. The
lines are those of `vllm/v1/core/sched/scheduler.py`, where they stand inside `schedule` and
`update_from_output`.

Nothing of it is called without speculation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import DraftTokenIds, SchedulerOutput
from mini_vllm.core.sched.step import Step
from mini_vllm.core.sched.utils import check_stop
from mini_vllm.core.stats import SpecDecodingStats

if TYPE_CHECKING:
    from mini_vllm.config.speculative import SpeculativeConfig
    from mini_vllm.core.sched.grammars import Grammars


class DraftScheduling:
    """`Scheduler`'s part about drafts.

    Attributes:
        num_spec_tokens: most drafts a request and step; 0: none.
        num_draft_slots: slots that a request's drafts may need past its last token.
        num_lookahead_tokens: slots past a step's tokens, asked for on behalf of the drafter's own passes.
        spec_decoding_stats: drafts since `make_stats` was called last; None where there were none.
    """

    requests: dict[str, Request]
    grammars: Grammars | None
    max_model_len: int
    step_class: type[Step] = (
        Step  # another in later releases, where drafts count otherwise (`releases.py`)
    )

    def _set_speculation(self, spec: SpeculativeConfig | None) -> None:
        self.num_spec_tokens = spec.num_spec_tokens if spec is not None else 0
        self.num_lookahead_tokens = spec.num_lookahead_tokens if spec is not None else 0
        self.num_draft_slots = self.num_spec_tokens
        self.spec_decoding_stats: SpecDecodingStats | None = None

    def _count_new_tokens(self, request: Request) -> int:
        """What to compute of a running request that has drafts, or that lacks nothing; 0: it waits for
        its result (`vllm/v1/core/sched/scheduler.py:385 in Scheduler.schedule`). `AsyncScheduler` counts
        what is in flight, too.
        """
        return request.num_tokens_with_spec - request.num_computed_tokens

    def _schedule_drafts(self, step: Step, request: Request, num_new_tokens: int) -> None:
        """Record which of the request's drafts found room in the step; the others are forgotten
        (`vllm/v1/core/sched/scheduler.py:502 in Scheduler.schedule`)."""
        num_scheduled_spec_tokens = (
            num_new_tokens
            + request.num_computed_tokens
            - request.num_tokens
            - request.num_output_placeholders
        )
        if num_scheduled_spec_tokens > 0:
            spec_token_ids = request.spec_token_ids[:num_scheduled_spec_tokens]
            step.scheduled_spec_decode_tokens[request.request_id] = spec_token_ids
        request.spec_token_ids = []

    def _mark_prefill_chunks(self, scheduler_output: SchedulerOutput) -> None:
        """Mark requests that are still in their prompt after this step: they sample and draft nothing."""
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[req_id]
            request.is_prefill_chunk = request.num_computed_tokens < (
                request.num_tokens + request.num_output_placeholders
            )

    def _take_back_rejected(
        self, request: Request, num_draft_tokens: int, num_accepted: int
    ) -> None:
        """Count a request's drafts, and take the rejected ones back: as a number. Their KV stays where it
        is, past the end, and the tokens that come are written over it
        (`vllm/v1/core/sched/scheduler.py:1371 in Scheduler.update_from_output`).
        """
        num_rejected = num_draft_tokens - num_accepted
        if request.num_computed_tokens > 0:  # 0: preempted while the step was computed
            request.num_computed_tokens -= num_rejected
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected
        if self.spec_decoding_stats is None:
            self.spec_decoding_stats = SpecDecodingStats(self.num_spec_tokens)
        if self.grammars is not None:  # what a grammar bars was no draft
            num_draft_tokens -= self.grammars.num_invalid_spec_tokens.pop(request.request_id, 0)
        self.spec_decoding_stats.observe_draft(num_draft_tokens, num_accepted)

    def _append_beside_drafts(
        self, request: Request, new_token_ids: list[int], stopped: bool
    ) -> tuple[list[int], bool]:
        """Append the tokens after the first, up to one that ends the request; what was accepted past that
        is dropped. Returns what is left, and whether the request ends. The runner's own list stays whole:
        a step's observers count by it what was accepted."""
        num_new = 1
        while not stopped and num_new < len(new_token_ids):
            request.append_output_token_ids(new_token_ids[num_new])
            stopped = check_stop(request, self.max_model_len)
            num_new += 1
        return new_token_ids[:num_new], stopped

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Take in what was drafted for the next step. Under asynchronous scheduling this is not called:
        the worker keeps the drafts, and a plan has placeholders for them.

        A request in the middle of its prompt drafts nothing
        (`vllm/v1/core/sched/scheduler.py:1691 Scheduler.update_draft_token_ids`).
        """
        drafts = zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
        for req_id, spec_token_ids in drafts:
            request = self.requests.get(req_id)
            if request is not None:
                request.spec_token_ids = [] if request.is_prefill_chunk else spec_token_ids
                if request.structured_output_request is not None and request.spec_token_ids:
                    assert self.grammars is not None
                    request.spec_token_ids = self.grammars.keep_allowed(request, spec_token_ids)

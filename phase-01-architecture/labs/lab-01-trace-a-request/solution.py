"""Lab 01-01: a request's life as a list of events. The reference solution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.core.request import Request
from mini_vllm.engine.input_processor import PromptType
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.outputs import RequestOutput

# ---- given ---------------------------------------------------------------------------------------


class Event(NamedTuple):
    """One request at one moment: when it is added, after each step of its life, when it is aborted.

    Attributes:
        step: how many steps the engine had done by then; 0 is before the first.
        request_id: as given to `add_request`.
        status: `RequestStatus` by name: WAITING, RUNNING, PREEMPTED, FINISHED_STOPPED,
            FINISHED_LENGTH_CAPPED or FINISHED_ABORTED.
        num_computed_before: tokens with KV in the cache before the step.
        num_cached_tokens: tokens that a prefix hit gave in this step.
        num_scheduled_tokens: tokens that the step computed for this request.
        num_computed_tokens: tokens with KV in the cache after the step.
        num_tokens: tokens that exist after the step, prompt and output.
        new_token_ids: what the step sampled for it: nothing, or one token.
        block_ids: the blocks it holds after the step, in order; none once it is finished.
        finish_reason: `length`, `stop` or `abort` in its last event, else None.

    Before, cached and scheduled add up to `num_computed_tokens`, except in the one event where a
    preemption takes everything away.
    """

    step: int
    request_id: str
    status: str
    num_computed_before: int
    num_cached_tokens: int
    num_scheduled_tokens: int
    num_computed_tokens: int
    num_tokens: int
    new_token_ids: tuple[int, ...]
    block_ids: tuple[int, ...]
    finish_reason: str | None


HEADINGS = (
    "step", "request", "status", "before", "cached", "run", "after", "tokens", "new", "blocks",
)  # fmt: skip


def table(events: Iterable[Event]) -> str:
    """The events as lines to read. Sampled tokens are counted, not shown."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for e in events:
        numbers = (e.num_computed_before, e.num_cached_tokens, e.num_scheduled_tokens)
        counters = (e.num_computed_tokens, e.num_tokens, len(e.new_token_ids))
        blocks = " ".join(map(str, e.block_ids)) or "-"
        rows.append((str(e.step), e.request_id, e.status, *map(str, numbers + counters), blocks))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    left = (1, 2, 9)  # the columns that hold words
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


class Tracer:
    """Drives an engine and writes down what becomes of each request.

    Args:
        engine: one that has no requests yet.

    Attributes:
        events: everything so far, in order.
        requests: each request ever added, by id, finished ones too.
        last: the step that was done last; None before the first.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.events: list[Event] = []
        self.requests: dict[str, Request] = {}
        self.last: StepRecord | None = None
        engine.engine_core.step_observers.append(self._observe)

    def _observe(self, record: StepRecord) -> None:
        self.last = record

    @property
    def num_steps(self) -> int:
        """Steps that the engine has done."""
        return self.engine.engine_core.num_steps

    # ---- yours -----------------------------------------------------------------------------------

    def add_request(
        self, request_id: str, prompt: PromptType, params: SamplingParams, priority: int = 0
    ) -> None:
        """Add a request, keep hold of it, write down its first event."""
        self.engine.add_request(request_id, prompt, params, priority=priority)
        request = self.engine.engine_core.scheduler.requests[request_id]
        self.requests[request_id] = request
        self.events.append(self._snapshot(request, before=0))

    def abort_request(self, request_id: str) -> None:
        """Abort a request and write down its last event."""
        self.engine.abort_request(request_id)
        request = self.requests[request_id]
        self.events.append(self._snapshot(request, before=request.num_computed_tokens))

    def step(self) -> list[RequestOutput]:
        """Do one step and write down an event for each request that was alive when it began."""
        if not self.engine.has_unfinished_requests():
            return self.engine.step()
        scheduler = self.engine.engine_core.scheduler
        alive = dict(scheduler.requests)
        before = {i: (r.num_computed_tokens, r.num_output_tokens) for i, r in alive.items()}
        outputs = self.engine.step()
        assert self.last is not None
        scheduled = self.last.scheduler_output.num_scheduled_tokens
        order = dict.fromkeys(
            [*scheduled, *(r.request_id for r in scheduler.running)]
            + [r.request_id for r in scheduler.waiting]
        )
        for request_id in order:
            computed, num_outputs = before[request_id]
            self.events.append(
                self._snapshot(
                    alive[request_id], computed, scheduled.get(request_id, 0), num_outputs
                )
            )
        return outputs

    def run(self) -> list[Event]:
        """Step until nothing is left to do; all events."""
        while self.engine.has_unfinished_requests():
            self.step()
        return self.events

    def _snapshot(
        self, request: Request, before: int, scheduled: int = 0, num_outputs: int | None = None
    ) -> Event:
        after = request.num_computed_tokens
        if num_outputs is None:
            num_outputs = request.num_output_tokens
        return Event(
            step=self.num_steps,
            request_id=request.request_id,
            status=request.status.name,
            num_computed_before=before,
            num_cached_tokens=after - before - scheduled if scheduled else 0,
            num_scheduled_tokens=scheduled,
            num_computed_tokens=after,
            num_tokens=request.num_tokens,
            new_token_ids=tuple(request.output_token_ids[num_outputs:]),
            block_ids=tuple(
                self.engine.engine_core.kv_cache_manager.get_block_ids(request.request_id)[0]
            ),
            finish_reason=request.get_finished_reason(),
        )


# ---- reading a trace -----------------------------------------------------------------------------


def life(events: Iterable[Event], request_id: str) -> list[Event]:
    """The events of one request, in order."""
    return [event for event in events if event.request_id == request_id]


def path(events: Iterable[Event], request_id: str) -> list[str]:
    """The statuses a request went through, each once as long as it lasted."""
    statuses: list[str] = []
    for event in life(events, request_id):
        if not statuses or statuses[-1] != event.status:
            statuses.append(event.status)
    return statuses


def token_steps(events: Iterable[Event], request_id: str) -> list[int]:
    """The step of each token that a request sampled."""
    return [event.step for event in life(events, request_id) for _ in event.new_token_ids]


def steps_to_first_token(events: Iterable[Event], request_id: str) -> int | None:
    """Steps from a request's arrival to its first token, that one included; None without a token."""
    mine = life(events, request_id)
    steps = token_steps(mine, request_id)
    return steps[0] - mine[0].step if steps else None

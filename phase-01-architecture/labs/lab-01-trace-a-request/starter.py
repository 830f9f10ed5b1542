"""Lab 01-01: a request's life as a list of events. Your work: four methods and four functions.

What you may look at, between two steps:

    scheduler = engine.engine_core.scheduler
    scheduler.requests            # dict: id -> Request, for the living only
    scheduler.running             # list[Request], in order of admission
    scheduler.waiting             # iterates over Requests, the head of the queue first
    engine.engine_core.kv_cache_manager.get_block_ids(request_id)[0]   # list[int], empty: holds none
                                  # (there is a list for each KV cache group, here one)

and of a `Request`: `status` (`.name` is its name), `num_computed_tokens`, `num_tokens`,
`output_token_ids`, `get_finished_reason()` (str, or None while it lives).
A `Request` that has finished is gone from the scheduler, but the object lives as long as you hold it.

The engine's own methods:

    engine.add_request(request_id, prompt, params, arrival_time=None, priority=0)   # fourth: a time
    engine.abort_request(request_id)
    engine.step()                 # list[RequestOutput]

One step, as `Tracer.last` holds it once the step is done:

    scheduler_output = record.scheduler_output
    scheduler_output.num_scheduled_tokens     # dict: id -> tokens of this step, in scheduling order
"""

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
        """Add a request (`n` is 1), keep hold of it, write down its first event.

        Hand `priority` on to the engine by name, `priority=priority`: its fourth place is the arrival time's.

        The event: `step` is `num_steps`, `status` is WAITING, nothing is computed, `num_tokens` is the
        prompt's length, no blocks.

        A request that the engine refuses leaves no trace here: its ValueError or TypeError goes on to
        the caller, and `requests` and `events` stay as they were.
        """
        raise NotImplementedError

    def abort_request(self, request_id: str) -> None:
        """Abort a request and write down its last event.

        The event: `step` is `num_steps`, since no step was done; both counters as they were
        (`num_computed_before` and `num_computed_tokens` are equal), nothing cached, scheduled or
        sampled, no blocks, `status` is FINISHED_ABORTED, `finish_reason` is `abort`.

        The engine's ValueError for an unknown id goes on to the caller, and there is no event.
        """
        raise NotImplementedError

    def step(self) -> list[RequestOutput]:
        """Do one step; write down an event for each request that was alive when it began.

        Returns what `engine.step()` returns. If the engine has nothing to do, that is no step, and
        there is no event.

        The order within a step: the scheduled ones, in scheduling order; then those in `running` that
        were not scheduled; then the queue, its head first. A request that finished in the step was
        scheduled in it, so none is missing.

        The recipe:

        1. Before the step remember each living request: the object, its `num_computed_tokens`, how many
           output tokens it has. Afterwards two of the three are overwritten, and the object may be
           out of reach.
        2. `engine.step()`.
        3. For each, compare. Its new tokens are the outputs that it did not have before. For a
           scheduled one, the growth of `num_computed_tokens` beyond `num_scheduled_tokens` came
           from the prefix cache; for the others `num_cached_tokens` is 0.
        """
        raise NotImplementedError

    def run(self) -> list[Event]:
        """`step` until the engine has nothing left to do; then all events."""
        raise NotImplementedError


# ---- reading a trace: yours ----------------------------------------------------------------------


def life(events: Iterable[Event], request_id: str) -> list[Event]:
    """The events of one request, in order."""
    raise NotImplementedError


def path(events: Iterable[Event], request_id: str) -> list[str]:
    """The statuses a request went through, each once as long as it lasted.

    For instance WAITING, RUNNING, PREEMPTED, RUNNING, FINISHED_LENGTH_CAPPED: a status that comes
    back later appears again.
    """
    raise NotImplementedError


def token_steps(events: Iterable[Event], request_id: str) -> list[int]:
    """The step of each token that a request sampled, one number per token.

    The gaps between them are the inter-token latency, counted in steps: 1 each, unless something came
    between.
    """
    raise NotImplementedError


def steps_to_first_token(events: Iterable[Event], request_id: str) -> int | None:
    """The time to the first token, in steps: from the request's arrival, the sampling step included.

    1 for a request that is prefilled in the first step after it came, more if it came in chunks or
    waited in the queue; None if it never sampled.
    """
    raise NotImplementedError

"""Lab 01-02: the loop of the real vLLM, as events. Your work: eight functions.

The shapes at the release that this course is pinned to. A `SchedulerOutput`, in vLLM and in `mini_vllm`:

    num_scheduled_tokens             # dict: request id -> tokens of this step, in scheduling order
    preempted_req_ids                # set of ids, or None
    scheduled_new_reqs               # list, one for each request that runs for the first time:
        .req_id  .num_computed_tokens  .block_ids
    scheduled_cached_reqs            # one object of parallel lists, for the others that run:
        .req_ids  .num_computed_tokens  .new_block_ids        # an entry of the last may be None
        .resumed_req_ids             # set: of those, the ones that were preempted and are back

Here `num_computed_tokens` is what the request has before the step, prefix hits of this admission included.
The `Request` itself is no help for that: its counter is advanced inside of `schedule()`.
For a new request `block_ids` is the whole block table. For a cached one `new_block_ids` is what is added
to it, or the whole of it if the request was resumed.

An output of `update_from_output` (`core_outputs` below gives them as a list):

    .request_id  .new_token_ids      # list[int]
    .finish_reason                   # None while it runs; else str() of it is length, stop or abort

A request that samples nothing in a step has no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Record = dict[str, Any]

# ---- given ---------------------------------------------------------------------------------------


class Event(NamedTuple):
    """One request at one moment: when it is added, after each step of its life, when it is aborted.

    The same eleven fields as in lab 01-01, which says what each means.
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


class Startup(NamedTuple):
    """What vLLM says about itself before the first request.

    Attributes:
        version: of vLLM, such as `0.22.1`.
        max_num_batched_tokens: the token budget of a step.
        async_scheduling: whether the next step is scheduled before this one's result is there.
        num_kv_cache_tokens: the tokens of "GPU KV cache size".
        max_model_len: the longest request.
        max_concurrency: how many such requests the cache is said to hold.
    """

    version: str
    max_num_batched_tokens: int
    async_scheduling: bool
    num_kv_cache_tokens: int
    max_model_len: int
    max_concurrency: float


class Iteration(NamedTuple):
    """One step, as the log line `Iteration(number): ...` has it. A request is in one of the two groups."""

    number: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int


class Difference(NamedTuple):
    """The first place where two event lists part. `field` is `event` where one list has ended."""

    step: int
    request_id: str
    field: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return (
            f"step {self.step}, request {self.request_id!r}, {self.field}: "
            f"vLLM {self.theirs!r}, mini_vllm {self.ours!r}"
        )


FINISHED = {
    "length": "FINISHED_LENGTH_CAPPED",
    "stop": "FINISHED_STOPPED",
    "abort": "FINISHED_ABORTED",
}
"""Finish reason -> the status it stands for."""


def block_list(block_ids: Any) -> list[int]:
    """Block ids as a plain list. vLLM has a tuple of lists, one a KV cache group; ours is one list."""
    return list(block_ids[0] if isinstance(block_ids, tuple) else block_ids)


def core_outputs(outputs: Any) -> list[Any]:
    """The outputs of `update_from_output` as a list. vLLM has a dict: front end -> its outputs."""
    if isinstance(outputs, dict):
        return [output for group in outputs.values() for output in group.outputs]
    return list(outputs)


# ---- starting vLLM: yours ------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment variables that make vLLM talk, and keep its scheduler within reach.

    Two: the log level is DEBUG, and the engine core runs in the process that drives it instead of one of its
    own. Both must be set before vllm is imported; capture.py sees to that.
    """
    raise NotImplementedError


def llm_arguments(settings: Mapping[str, int]) -> dict[str, Any]:
    """The keyword arguments of `vllm.LLM` for `mini_vllm`'s settings.

    Args:
        settings: fields of `mini_vllm.EngineConfig`, `num_gpu_blocks` among them.

    Returns: the settings, with `num_gpu_blocks` under vLLM's name for a pool of a given size. Besides:
    `dtype` float32, as in `mini_vllm` (the cache follows it); no compilation; no asynchronous scheduling,
    which would decide a step before the last one's tokens are there; and a log line for each iteration.
    `settings` is left as it is.

    The names of all four stand in vLLM's `EngineArgs` and, where they matter, in `capture/in_process.log`:
    `num_gpu_blocks_override`, `enforce_eager`, `async_scheduling`, `enable_logging_iteration_details`.
    """
    raise NotImplementedError


# ---- listening: yours ----------------------------------------------------------------------------


def watch(scheduler: Any, write: Callable[[Record], None]) -> None:
    """Wrap four methods of a scheduler, so that each call leaves a record.

    The scheduler is vLLM's or `mini_vllm`'s. Set the wrappers on this one object, not on its class. Each
    calls the method it stands for first, returns what that returned, and writes one record, made of
    numbers, strings, lists and dicts only (it goes into a file, and vLLM reuses its objects):

        add_request(request)
            {"call": "add_request", "request_id": ..., "num_tokens": ...}
        finish_requests(request_ids, finished_status)           # request_ids: one id or several
            {"call": "finish_requests", "request_ids": [...], "status": "FINISHED_ABORTED"}
        schedule()
            {"call": "schedule",
             "new": [{"request_id": ..., "num_computed_tokens": ..., "block_ids": [...]}, ...],
             "cached": [{"request_id": ..., "num_computed_tokens": ..., "new_block_ids": [...],
                         "resumed": False}, ...],
             "num_scheduled_tokens": {...},
             "preempted": [...]}                                # sorted
        update_from_output(scheduler_output, model_runner_output)
            {"call": "update_from_output",
             "outputs": [{"request_id": ..., "new_token_ids": [...], "finish_reason": None}, ...],
                                                                # the reason as str(): vLLM's is an enum
             "running": [...], "waiting": [...]}                # ids, as they stand after the call

    `block_list` and `core_outputs` above level out where the two engines differ.
    """
    raise NotImplementedError


# ---- reading the log: yours ----------------------------------------------------------------------


def parse_startup(log: str) -> Startup:
    """What vLLM said before the first request. The lines, each after a prefix that varies:

        Initializing a V1 LLM engine (v0.22.1) with config: ...
        Chunked prefill is enabled with max_num_batched_tokens=32.
        Asynchronous scheduling is enabled.                     (or: disabled)
        GPU KV cache size: 524,288 tokens
        Maximum concurrency for 1,024 tokens per request: 512.00x

    A line may come more than once: each process that reads the configuration may decide again. The last
    one holds.

    Raises ValueError, naming the field of `Startup`, if a line is missing.
    """
    raise NotImplementedError


def parse_iterations(log: str) -> list[Iteration]:
    """Every iteration line of the log, in order:

    Iteration(3): 1 context requests, 22 context tokens, 2 generation requests, 2 generation tokens, ...
    """
    raise NotImplementedError


# ---- from records to events: yours ---------------------------------------------------------------


def to_events(records: Iterable[Record]) -> list[Event]:
    """The event list of lab 01-01, put together from what the scheduler said and was told.

    It equals, event for event, what lab 01-01's `Tracer` writes down on the same run (but for stop strings,
    which are found outside of the core):

    - `add_request`: a WAITING event with the number of steps done so far.
    - `finish_requests`: for each of its ids that is alive, an event with the status given, the counters as
      they are, and no blocks. Ids of the dead are passed over.
    - `schedule` and the `update_from_output` after it are one step: an event for each request that is
      alive. First the scheduled ones in scheduling order, then the rest of `running`, then `waiting`.

    For each living request keep: status, `num_tokens`, `num_computed_tokens`, block table. In a step:

    1. Remember every `num_computed_tokens`: it is `num_computed_before`.
    2. A preempted request: PREEMPTED, nothing computed, no blocks. It keeps its tokens.
    3. A new or resumed request brings its prefix hits as its record's `num_computed_tokens`, and its whole
       block table. Any other cached one only adds blocks.
    4. Whoever is scheduled is RUNNING, and has computed its hits and its scheduled tokens more.
    5. The outputs bring tokens, and `finish_reason`. Who has one ends: the status that `FINISHED` names, no
       blocks, dead from then on.

    `request_id` is the id that the user gave. vLLM appends a dash and eight hexadecimal digits of its
    own; `mini_vllm` appends nothing. A user's id may have dashes, too; one that ends in such a tail by
    itself cannot be told from vLLM's, and loses it.
    """
    raise NotImplementedError


# ---- laying them side by side: yours -------------------------------------------------------------


def iterations_of(events: Iterable[Event]) -> list[Iteration]:
    """The `Iteration` lines that a run with these events must have logged, one a step.

    Iterations are counted from 0, steps from 1. A scheduled request is in the context group as long as it
    had no output token before the step, and in the generation group from then on. Its tokens are those
    scheduled, in the same group. A step in which nothing was scheduled gives no line.
    """
    raise NotImplementedError


def first_difference(
    theirs: Iterable[Event], ours: Iterable[Event], tokens: bool = True
) -> Difference | None:
    """Where two event lists part for the first time; None if they never do.

    Events are compared by their place in the list, fields in the order of `Event`. The difference has
    step and request of vLLM's event. Where one list ends before the other, `field` is `event`, step and
    request are those of the first event too many, and the two values are its status and None, each on
    its side.

    Without `tokens` it counts how many tokens an event brought, not which: for a run on other weights.
    The two values are then the two numbers.
    """
    raise NotImplementedError

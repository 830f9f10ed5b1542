"""Given: what listens to a scheduler and lays two engines side by side. Worth reading, nothing to write.

    vLLM ─┬─► watch ─► records ─► to_events ─► first_difference
          └─► log ─► parse_startup; your parse_iterations and iterations_of do the rest

`watch` and `to_events` do not care which engine they listen to: `mini_vllm`'s scheduler has the same four
methods, with the same names in what they return. That is how both can be tested on any laptop.

The shapes at the release that this course is pinned to. A `SchedulerOutput`, in vLLM and in `mini_vllm`:

    num_scheduled_tokens             # dict: request id -> tokens of this step, in scheduling order
    preempted_req_ids                # set of ids, or None
    scheduled_new_reqs               # list, one for each request that runs for the first time:
        .req_id  .num_computed_tokens  .block_ids
    scheduled_cached_reqs            # one object of parallel lists, for the others that run:
        .req_ids  .num_computed_tokens  .new_block_ids        # an entry of the last may be None
        .resumed_req_ids             # set: of those, the ones that were preempted and are back

Here `num_computed_tokens` is what the request has before the step, prefix hits of this admission included.
The `Request` itself is no help for that: its counter is advanced inside of `schedule()`. For a new request
`block_ids` is the whole block table, a list for each KV cache group, here one. For a cached one
`new_block_ids` is what is added to it, or the whole of it if the request was resumed. (Under vLLM's V2 model
runner a resumed request goes out as a new one.)

An output of `update_from_output` (`core_outputs` below gives them as a list):

    .request_id  .new_token_ids      # list[int]
    .finish_reason                   # None while it runs; else str() of it is length, stop or abort

A request that samples nothing in a step has no output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Record = dict[str, Any]


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
        num_kv_cache_tokens: the tokens of "GPU KV cache size".
        max_model_len: the longest request.
        max_concurrency: how many such requests the cache is said to hold.
    """

    version: str
    max_num_batched_tokens: int
    num_kv_cache_tokens: int
    max_model_len: int
    max_concurrency: float


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


def block_list(block_ids: tuple[list[int], ...] | None) -> list[int]:
    """Block ids as a plain list, a new one: of the lists, one a KV cache group, the first."""
    return list(block_ids[0]) if block_ids else []


def core_outputs(outputs: Any) -> list[Any]:
    """The outputs of `update_from_output` as a list. vLLM has a dict: front end -> its outputs."""
    if isinstance(outputs, dict):
        return [output for group in outputs.values() for output in group.outputs]
    return list(outputs)


# ---- starting vLLM -------------------------------------------------------------------------------


def llm_arguments(settings: Mapping[str, int]) -> dict[str, Any]:
    """The keyword arguments of `vllm.LLM` for `mini_vllm`'s settings.

    A pool of a given size has another name there. float32, because left alone vLLM runs this checkpoint
    in half precision, which gives other tokens. No asynchronous scheduling: it decides a step before the
    last one's tokens are there, and the loop is no longer the one of lab 01-01.
    """
    arguments: dict[str, Any] = dict(settings)
    arguments["num_gpu_blocks_override"] = arguments.pop("num_gpu_blocks")
    return arguments | {
        "dtype": "float32",
        "enforce_eager": True,
        "async_scheduling": False,
        "enable_logging_iteration_details": True,
    }


# ---- listening -----------------------------------------------------------------------------------


def watch(scheduler: Any, write: Callable[[Record], None]) -> None:
    """Wrap four methods of a scheduler, so that each call leaves a record.

    The wrappers sit on this one object, not on its class. Each calls the method it stands for first, returns
    what that returned, and writes one record of numbers, strings, lists and dicts: it goes into a file, and
    vLLM reuses its own objects.
    """
    add_request, finish_requests = scheduler.add_request, scheduler.finish_requests
    schedule, update_from_output = scheduler.schedule, scheduler.update_from_output

    def watched_add_request(request: Any) -> Any:
        result = add_request(request)
        write(
            {
                "call": "add_request",
                "request_id": request.request_id,
                "num_tokens": request.num_tokens,
            }
        )
        return result

    def watched_finish_requests(request_ids: Any, finished_status: Any) -> Any:
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        result = finish_requests(ids, finished_status)
        write({"call": "finish_requests", "request_ids": ids, "status": finished_status.name})
        return result

    def watched_schedule() -> Any:
        output = schedule()
        cached = output.scheduled_cached_reqs
        changes = zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)
        write(
            {
                "call": "schedule",
                "new": [
                    {
                        "request_id": new.req_id,
                        "num_computed_tokens": new.num_computed_tokens,
                        "block_ids": block_list(new.block_ids),
                    }
                    for new in output.scheduled_new_reqs
                ],
                "cached": [
                    {
                        "request_id": request_id,
                        "num_computed_tokens": num_computed_tokens,
                        "new_block_ids": block_list(new_block_ids),
                        "resumed": request_id in cached.resumed_req_ids,
                    }
                    for request_id, num_computed_tokens, new_block_ids in changes
                ],
                "num_scheduled_tokens": dict(output.num_scheduled_tokens),
                "preempted": sorted(output.preempted_req_ids or ()),
            }
        )
        return output

    def watched_update_from_output(scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = update_from_output(scheduler_output, model_runner_output)
        write(
            {
                "call": "update_from_output",
                "outputs": [
                    {
                        "request_id": output.request_id,
                        "new_token_ids": list(output.new_token_ids),
                        "finish_reason": output.finish_reason and str(output.finish_reason),
                    }
                    for output in core_outputs(outputs)
                ],
                "running": [request.request_id for request in scheduler.running],
                "waiting": [request.request_id for request in scheduler.waiting],
            }
        )
        return outputs

    scheduler.add_request = watched_add_request
    scheduler.finish_requests = watched_finish_requests
    scheduler.schedule = watched_schedule
    scheduler.update_from_output = watched_update_from_output


# ---- reading the log -----------------------------------------------------------------------------

_STARTUP = {
    "version": r"Initializing a V1 LLM engine \(v([^)]+)\)",
    "max_num_batched_tokens": r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)",
    "num_kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "max_model_len": r"Maximum concurrency for ([\d,]+) tokens per request",
    "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
}


def parse_startup(log: str) -> Startup:
    """What vLLM said before the first request; ValueError, naming the field, if a line is missing.

    A line may come more than once, because each process that reads the configuration prints it. The last one
    holds.
    """
    found = {}
    for field, pattern in _STARTUP.items():
        said = re.findall(pattern, log)
        if not said:
            raise ValueError(f"the log does not say {field}: no line with {pattern!r}")
        found[field] = said[-1].replace(",", "")
    return Startup(
        version=found["version"],
        max_num_batched_tokens=int(found["max_num_batched_tokens"]),
        num_kv_cache_tokens=int(found["num_kv_cache_tokens"]),
        max_model_len=int(found["max_model_len"]),
        max_concurrency=float(found["max_concurrency"]),
    )


# ---- from records to events ----------------------------------------------------------------------


class _Life:
    """What is known of one request so far."""

    def __init__(self, num_tokens: int) -> None:
        self.status = "WAITING"
        self.num_tokens = num_tokens
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []


def external_id(request_id: str) -> str:
    """The id that the user gave: without the eight hexadecimal digits that vLLM appends."""
    return re.sub(r"-[0-9a-f]{8}$", "", request_id)


def to_events(records: Iterable[Record]) -> list[Event]:
    """The event list of lab 01-01, put together from what the scheduler said and was told.

    A `schedule` record and the `update_from_output` after it are one step: an event for each living request,
    first the scheduled ones in scheduling order, then the rest of `running`, then `waiting`.
    """
    events: list[Event] = []
    lives: dict[str, _Life] = {}
    step = 0
    scheduled: Record = {}
    for record in records:
        if record["call"] == "add_request":
            life = lives[record["request_id"]] = _Life(record["num_tokens"])
            events.append(_event(step, record["request_id"], life))
        elif record["call"] == "finish_requests":
            for request_id in record["request_ids"]:
                if request_id in lives:
                    life = lives.pop(request_id)
                    life.status, life.block_ids = record["status"], []
                    events.append(_event(step, request_id, life))
        elif record["call"] == "schedule":
            scheduled = record
        else:
            step += 1
            events += _step_events(step, lives, scheduled, record)
    return events


def _step_events(step: int, lives: dict[str, _Life], told: Record, came: Record) -> list[Event]:
    before = {request_id: life.num_computed_tokens for request_id, life in lives.items()}
    hits: dict[str, int] = {}
    for request_id in told["preempted"]:
        life = lives[request_id]
        life.status, life.num_computed_tokens, life.block_ids = "PREEMPTED", 0, []
    for new in told["new"]:
        lives[new["request_id"]].block_ids = list(new["block_ids"])
        hits[new["request_id"]] = new["num_computed_tokens"]
    for cached in told["cached"]:
        life = lives[cached["request_id"]]
        if cached["resumed"]:
            life.block_ids = list(cached["new_block_ids"])
            hits[cached["request_id"]] = cached["num_computed_tokens"]
        else:
            life.block_ids += cached["new_block_ids"]
    num_scheduled = told["num_scheduled_tokens"]
    for request_id, num_tokens in num_scheduled.items():
        lives[request_id].status = "RUNNING"
        lives[request_id].num_computed_tokens += hits.get(request_id, 0) + num_tokens
    news = {output["request_id"]: output for output in came["outputs"]}
    events = []
    for request_id in dict.fromkeys([*num_scheduled, *came["running"], *came["waiting"]]):
        life = lives[request_id]
        output = news.get(request_id, {"new_token_ids": [], "finish_reason": None})
        life.num_tokens += len(output["new_token_ids"])
        if output["finish_reason"]:
            life.status, life.block_ids = FINISHED[output["finish_reason"]], []
            del lives[request_id]
        events.append(
            _event(
                step,
                request_id,
                life,
                before[request_id],
                hits.get(request_id, 0),
                num_scheduled.get(request_id, 0),
                output["new_token_ids"],
            )
        )
    return events


def _event(
    step: int,
    request_id: str,
    life: _Life,
    before: int | None = None,
    hits: int = 0,
    scheduled: int = 0,
    new_token_ids: Iterable[int] = (),
) -> Event:
    reasons = {status: reason for reason, status in FINISHED.items()}
    return Event(
        step=step,
        request_id=external_id(request_id),
        status=life.status,
        num_computed_before=life.num_computed_tokens if before is None else before,
        num_cached_tokens=hits,
        num_scheduled_tokens=scheduled,
        num_computed_tokens=life.num_computed_tokens,
        num_tokens=life.num_tokens,
        new_token_ids=tuple(new_token_ids),
        block_ids=tuple(life.block_ids),
        finish_reason=reasons.get(life.status),
    )


# ---- laying them side by side --------------------------------------------------------------------


def first_difference(
    theirs: Iterable[Event], ours: Iterable[Event], tokens: bool = True
) -> Difference | None:
    """Where two event lists part for the first time; None if they never do.

    Without `tokens` it counts how many tokens an event brought, not which: for a run on other weights.
    """
    left, right = list(theirs), list(ours)
    for a, b in zip(left, right, strict=False):
        for field in Event._fields:
            x, y = getattr(a, field), getattr(b, field)
            if field == "new_token_ids" and not tokens:
                x, y = len(x), len(y)
            if x != y:
                return Difference(a.step, a.request_id, field, x, y)
    if len(left) == len(right):
        return None
    rest = max(left, right, key=len)[min(len(left), len(right))]
    longer = len(left) > len(right)
    return Difference(
        rest.step,
        rest.request_id,
        "event",
        rest.status if longer else None,
        None if longer else rest.status,
    )

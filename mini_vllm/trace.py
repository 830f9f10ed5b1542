"""Every step as data: what was scheduled, why the pool looks as it does, how long it took.

vLLM has no such record; nearest are its per-step log line
(`vllm/v1/engine/core.py:399 EngineCore.log_iteration_details`) and its KV events. A `TraceRecorder`
observes the engine core and changes nothing in it.

Two forms: text to read, and Chrome's trace format (JSON) to open in Perfetto or `chrome://tracing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mini_vllm.engine import LLMEngine, StepRecord


@dataclass(slots=True)
class RequestStep:
    """One request's part in one step.

    Attributes:
        num_computed_tokens: tokens in the cache before the step.
        num_scheduled_tokens: tokens computed in it.
        num_cached_tokens: of `num_computed_tokens`, those a prefix hit brought in this very step.
        block_ids: its block table.
        new_token_ids: what it sampled: nothing in mid-prompt, else one token.
        finish_reason: set in its last step.
    """

    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    num_cached_tokens: int
    block_ids: list[int]
    new_token_ids: list[int]
    finish_reason: str | None


@dataclass(slots=True)
class StepTrace:
    """One step. Times are seconds; `start` counts from the first step's beginning."""

    index: int
    start: float
    schedule_time: float
    execute_time: float
    update_time: float
    scheduled: list[RequestStep]
    preempted: list[str]
    running: list[str]
    waiting: list[str]
    free_blocks: int
    kv_usage: float


class TraceRecorder:
    """Keeps a `StepTrace` a step, from now until `detach`.

    Block tables are read when a step is over; a request that finished in it has given its blocks
    back by then, so its table is followed from the scheduler's outputs instead.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.core = engine.engine_core
        self.steps: list[StepTrace] = []
        self._tables: dict[str, list[int]] = {}
        self._elapsed = 0.0
        self.core.step_observers.append(self._observe)

    def detach(self) -> None:
        self.core.step_observers.remove(self._observe)

    def _observe(self, record: StepRecord) -> None:
        output = record.scheduler_output
        tables = self._tables
        for request_id in output.finished_req_ids:
            tables.pop(request_id, None)
        for request_id in output.preempted_req_ids:
            tables.pop(request_id, None)
        computed: dict[str, int] = {}
        hits: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            tables[new.req_id] = list(new.block_ids)
            computed[new.req_id] = hits[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        changes = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for request_id, block_ids, num_computed in changes:
            computed[request_id] = num_computed
            if request_id in cached.resumed_req_ids:
                tables[request_id] = []
                hits[request_id] = num_computed
            if block_ids:
                tables[request_id] = tables.get(request_id, []) + block_ids
        news = {o.request_id: o for o in record.outputs}
        scheduled = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            new_output = news.get(request_id)
            scheduled.append(
                RequestStep(
                    request_id,
                    computed.get(request_id, 0),
                    num_tokens,
                    hits.get(request_id, 0),
                    list(tables.get(request_id, [])),
                    new_output.new_token_ids if new_output else [],
                    new_output.finish_reason if new_output else None,
                )
            )
        scheduler = self.core.scheduler
        self.steps.append(
            StepTrace(
                index=record.index,
                start=self._elapsed,
                schedule_time=record.schedule_time,
                execute_time=record.execute_time,
                update_time=record.update_time,
                scheduled=scheduled,
                preempted=sorted(output.preempted_req_ids),
                running=[r.request_id for r in scheduler.running],
                waiting=[r.request_id for r in scheduler.waiting],
                free_blocks=self.core.kv_cache_manager.block_pool.get_num_free_blocks(),
                kv_usage=self.core.kv_cache_manager.usage,
            )
        )
        self._elapsed += record.schedule_time + record.execute_time + record.update_time


def to_text(steps: list[StepTrace]) -> str:
    """The trace as lines to read: one a step, one a request in it."""
    return "\n".join(_text_lines(steps)) + "\n"


def _text_lines(steps: list[StepTrace]) -> Iterator[str]:
    for step in steps:
        total = sum(r.num_scheduled_tokens for r in step.scheduled)
        milliseconds = 1e3 * (step.schedule_time + step.execute_time + step.update_time)
        yield (
            f"step {step.index}: {total} tokens for {len(step.scheduled)} requests, "
            f"running {len(step.running)}, waiting {len(step.waiting)}, "
            f"free blocks {step.free_blocks}, {milliseconds:.2f} ms"
        )
        for request_id in step.preempted:
            yield f"  {request_id}: preempted, its blocks are free, it will be recomputed"
        for r in step.scheduled:
            first, last = r.num_computed_tokens, r.num_computed_tokens + r.num_scheduled_tokens
            notes = [f"tokens {first}..{last - 1}", f"blocks {_runs(r.block_ids)}"]
            if r.num_cached_tokens:
                notes.append(f"{r.num_cached_tokens} tokens from the prefix cache")
            if r.new_token_ids:
                notes.append(f"sampled {r.new_token_ids[0]}")
            if r.finish_reason:
                notes.append(f"finished: {r.finish_reason}")
            yield f"  {r.request_id}: " + ", ".join(notes)


def _runs(block_ids: list[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3,7`."""
    parts: list[list[int]] = []
    for block_id in block_ids:
        if parts and block_id == parts[-1][1] + 1:
            parts[-1][1] = block_id
        else:
            parts.append([block_id, block_id])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


def to_chrome_trace(steps: list[StepTrace]) -> dict[str, Any]:
    """The trace in Chrome's trace event format: a track a request, counters for the rest.

    Times are in microseconds, as the format wants.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "mini_vllm"}},
        {"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "engine core"}},
    ]
    tracks: dict[str, int] = {}
    for step in steps:
        start = step.start * 1e6
        spans = (
            ("schedule", step.schedule_time),
            ("execute", step.execute_time),
            ("update", step.update_time),
        )
        at = start
        for name, seconds in spans:
            events.append(_span(0, name, at, seconds * 1e6, {"step": step.index}))
            at += seconds * 1e6
        counters = {
            "batch tokens": sum(r.num_scheduled_tokens for r in step.scheduled),
            "waiting requests": len(step.waiting),
            "running requests": len(step.running),
            "free KV blocks": step.free_blocks,
        }
        for name, value in counters.items():
            events.append(
                {"ph": "C", "pid": 1, "name": name, "ts": start, "args": {"value": value}}
            )
        for r in step.scheduled:
            if r.request_id not in tracks:
                tracks[r.request_id] = tid = len(tracks) + 1
                name_args = {"name": f"request {r.request_id}"}
                events.append(
                    {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": name_args}
                )
            kind = "decode" if r.num_scheduled_tokens == 1 else "prefill"
            args = asdict(r) | {"step": step.index}
            events.append(_span(tracks[r.request_id], kind, start, at - start, args))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _span(tid: int, name: str, ts: float, dur: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


FORMATS = (".txt", ".json")


def check_trace_path(path: Path) -> None:
    """Find out before the run whether the trace can be written after it.

    Raises ValueError unless `path` ends in a form that `write_trace` knows, OSError unless its
    folder can be written to.
    """
    if path.suffix not in FORMATS:
        raise ValueError(
            f"cannot tell the trace's form from {str(path)!r}: end it in .txt or .json"
        )


def write_trace(steps: list[StepTrace], path: Path) -> None:
    """Write the trace in the form that the path's ending names: `.txt` or `.json`."""
    check_trace_path(path)
    if path.suffix == ".txt":
        path.write_text(to_text(steps), encoding="utf-8")
    else:
        path.write_text(json.dumps(to_chrome_trace(steps)), encoding="utf-8")

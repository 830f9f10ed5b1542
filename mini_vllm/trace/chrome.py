"""A trace in Chrome's trace event format, to open in Perfetto or `chrome://tracing`.

The format: complete events (`ph` X) with `ts` and `dur` in microseconds on a thread of a process;
counters (C); instants (i) with a scope; metadata (M) that names and orders the threads. Each has a
category, `cat`, to filter by: `engine`, `request`, `wait`, `event`, `counter`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mini_vllm.trace.types import StepTrace

_PID = 1


def to_chrome_trace(steps: list[StepTrace]) -> dict[str, Any]:
    """One track a request, one for the engine core, counters for the KV cache, queue and batch.

    A request's track shows every step it was in, and between them the spans in which it waited:
    `waiting` before it was first admitted, `preempted` after a preemption. Where no times were
    recorded (a scheduler's trace), a step lasts one millisecond.
    """
    writer = _Writer()
    timed = any(step.schedule_time + step.execute_time + step.update_time for step in steps)
    for number, step in enumerate(steps):
        if timed:
            spans = [
                ("schedule", 1e6 * step.schedule_time),
                ("execute", 1e6 * step.execute_time),
                ("update", 1e6 * step.update_time),
            ]
            writer.step(step, 1e6 * step.start, spans)
        else:
            writer.step(step, 1e3 * number, [("step", 1e3)])
    return {"displayTimeUnit": "ms", "traceEvents": writer.finish()}


class _Writer:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.tracks: dict[str, int] = {}
        self.waits: dict[str, tuple[str, float]] = {}  # request id -> what it waits as, since when
        self.preempted: set[str] = set()
        self.end = 0.0
        self._meta("process_name", 0, {"name": "mini_vllm"})
        self._meta("thread_name", 0, {"name": "engine core"})
        self._meta("thread_sort_index", 0, {"sort_index": 0})

    def _meta(self, name: str, tid: int, args: dict[str, Any]) -> None:
        self._add("M", "__metadata", name, tid=tid, args=args)

    def _add(self, ph: str, cat: str, name: str, **more: Any) -> None:
        self.events.append({"ph": ph, "cat": cat, "pid": _PID, "name": name} | more)

    def _instant(self, request_id: str, name: str, ts: float, args: dict[str, Any]) -> None:
        self._add("i", "event", name, s="t", tid=self._track(request_id), ts=ts, args=args)

    def _track(self, request_id: str) -> int:
        if request_id not in self.tracks:
            self.tracks[request_id] = tid = len(self.tracks) + 1
            self._meta("thread_name", tid, {"name": f"request {request_id}"})
            self._meta("thread_sort_index", tid, {"sort_index": tid})
        return self.tracks[request_id]

    def step(self, step: StepTrace, start: float, spans: list[tuple[str, float]]) -> None:
        at = start
        for name, duration in spans:
            self._add("X", "engine", name, tid=0, ts=at, dur=duration, args={"step": step.index})
            at += duration
        self._counters(step, start)
        for request_id in step.aborted:
            self._stop_waiting(request_id, start)
            self._instant(request_id, "ended from outside", start, {"step": step.index})
        for request_id in step.arrived:
            self.waits.pop(request_id, None)
            self.preempted.discard(request_id)
            self._instant(request_id, "arrived", start, {"step": step.index})
            self.waits[request_id] = "waiting", start
        for request_id in step.preempted:
            self._instant(
                request_id, "preempted", start, {"step": step.index, "why": step.reason(request_id)}
            )
            self.preempted.add(request_id)
        for part in step.scheduled:
            self._stop_waiting(part.request_id, start)
            args = asdict(part) | {"step": step.index}
            tid = self._track(part.request_id)
            self._add("X", "request", part.kind, tid=tid, ts=start, dur=at - start, args=args)
            if part.finish_reason is not None:
                self.preempted.discard(part.request_id)
                name = f"finished: {part.finish_reason}"
                self._instant(part.request_id, name, at, {"step": step.index})
        for request_id in step.waiting:
            if request_id not in self.waits:
                kind = "preempted" if request_id in self.preempted else "waiting"
                self.waits[request_id] = kind, start
        self.end = at

    def _stop_waiting(self, request_id: str, now: float) -> None:
        kind, since = self.waits.pop(request_id, ("", now))
        if now > since:
            tid = self._track(request_id)
            self._add("X", "wait", kind, tid=tid, ts=since, dur=now - since, args={})

    def _counters(self, step: StepTrace, ts: float) -> None:
        prefill = sum(r.num_scheduled_tokens for r in step.scheduled if r.kind != "decode")
        decode = sum(r.num_scheduled_tokens for r in step.scheduled if r.kind == "decode")
        series: dict[str, dict[str, float]] = {
            "batch tokens": {"prefill": prefill, "decode": decode},
            "requests": {"running": len(step.running), "waiting": len(step.waiting)},
            "free KV blocks": {
                "cached": step.cached_blocks,
                "empty": step.free_blocks - step.cached_blocks,
            },
            "KV cache use (%)": {"in use": round(100 * step.kv_usage, 3)},
        }
        for name, args in series.items():
            self._add("C", "counter", name, ts=ts, args=args)

    def finish(self) -> list[dict[str, Any]]:
        for request_id in list(self.waits):
            self._stop_waiting(request_id, self.end)
        return self.events

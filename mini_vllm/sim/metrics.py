"""What a simulated run is judged by, under the names of `vllm bench serve`, in constant memory.

Mirrors `vllm/benchmarks/serve.py` (`calculate_metrics` 396), which keeps every time and computes at the
end. Here a request is forgotten when it ends: percentiles come from a `Sketch`, within 0.5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.sim.cost import StepWork
from mini_vllm.sim.sketch import Sketch
from mini_vllm.utils.untrusted import shorten_repr

LATENCIES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
SLO_NAMES = ("ttft", "tpot", "e2el")
"""What a goodput may demand (`vllm/benchmarks/serve.py:1130 check_goodput_args`)."""


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """`["ttft:200", "tpot:30"]`, in milliseconds, as a dict.

    Raises ValueError naming the pair and the rule.
    Source: `vllm/benchmarks/serve.py:1152 parse_goodput`.
    """
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = float("nan")
        if name not in SLO_NAMES or not limit >= 0:
            raise ValueError(
                f"a goodput is NAME:MILLISECONDS with a name among {', '.join(SLO_NAMES)} and a "
                f"number of at least 0, got {shorten_repr(pair)}"
            )
        found[name] = limit
    return found


@dataclass(slots=True)
class Live:
    """A request that is under way: what its metrics need."""

    request: Any  # the scheduler's
    arrival: float
    prompt_len: int
    token: int
    made: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass
class Timeline:
    """The run over time in at most `SLOTS` samples: when full, every other goes, and half as many come."""

    SLOTS = 512
    rows: list[tuple[float, int, int, float]] = field(default_factory=list)
    """(time, running, waiting, share of the KV cache in use), right after a plan was made."""
    every: int = 1

    def add(self, step: int, time: float, running: int, waiting: int, usage: float) -> None:
        if step % self.every:
            return
        self.rows.append((time, running, waiting, usage))
        if len(self.rows) == self.SLOTS:
            del self.rows[1::2]
            self.every *= 2


class _BySecond:
    """The most tokens, and the most requests, of any second. The seconds count from the first arrival.

    A request counts in each second that it touches, as in `calculate_metrics`. A second is settled,
    and forgotten, once the clock has passed it.
    """

    def __init__(self) -> None:
        self.start: float | None = None
        self.max_tokens = self.max_requests = 0
        self._counts: dict[int, list[int]] = {}  # second -> arrivals, ends, tokens
        self._alive = 0

    def note(self, time: float, what: int, times: int = 1) -> None:
        if self.start is None:
            self.start = time
        self._counts.setdefault(int(time - self.start), [0, 0, 0])[what] += times

    def settle(self, now: float) -> None:
        """Nothing will be noted before `now` any more."""
        if self.start is None or not self._counts or min(self._counts) + 1 > now - self.start:
            return
        for second in sorted(self._counts):
            if second + 1 > now - self.start:
                break
            arrivals, ends, tokens = self._counts.pop(second)
            self._alive += arrivals
            self.max_requests = max(self.max_requests, self._alive)
            self.max_tokens = max(self.max_tokens, tokens)
            self._alive -= ends


class ServingMetrics:
    """Takes the events of a run in the order of the clock; `result` has the numbers.

    Args:
        goodput: limits in milliseconds by name; see `parse_goodput`.
        percentiles: which to report beside mean and median.

    Raises ValueError for a percentile that is not from 0 to 100.
    """

    def __init__(
        self, goodput: Mapping[str, float] | None = None, percentiles: Sequence[float] = (99.0,)
    ) -> None:
        for p in percentiles:
            if not 0 <= p <= 100:
                raise ValueError(f"a percentile must be from 0 to 100, got {shorten_repr(p)}")
        self.goodput = dict(goodput or {})
        self.percentiles = tuple(percentiles)
        self.sketches = {name: Sketch() for name in LATENCIES}
        self.timeline = Timeline()
        self.completed = self.failed = self.good = 0
        self.first_failure = ""
        self.input_tokens = self.output_tokens = 0
        self.end = 0.0
        self.busy = 0.0  # seconds that the device computed
        self.num_steps = self.empty_steps = self.scheduled_tokens = self.scheduled_reqs = 0
        self.cached_tokens = 0
        self.max_running = self.max_waiting = 0
        self.max_usage = 0.0
        self._seconds = _BySecond()

    def arrived(self, live: Live) -> None:
        self._seconds.note(live.arrival, 0)

    def refused(self, arrival: float, why: str) -> None:
        """A request that the engine would not take. It counts as failed and nowhere else."""
        self.failed += 1
        self.first_failure = self.first_failure or why

    def planned(self, work: StepWork, device: float, cached: int) -> None:
        """A step was planned. `cached`: prefix hits of the requests that it admits for the first time."""
        self.num_steps += 1
        self.empty_steps += not work.num_tokens
        self.scheduled_tokens += work.num_tokens
        self.scheduled_reqs += work.num_reqs
        self.cached_tokens += cached
        self.busy += device

    def tokens(
        self, lives: Sequence[Live], now: float, counts: Sequence[int] | None = None
    ) -> None:
        """Each of these requests got its next token, or as many as `counts` says.

        Tokens that come together are one gap, as one chunk of a stream is to `vllm bench serve`.
        """
        num_tokens = len(lives) if counts is None else sum(counts)
        gaps: dict[float, int] = {}
        for index, live in enumerate(lives):
            count = 1 if counts is None else counts[index]
            if not count:
                continue
            first = live.made == 0
            live.made += count
            if first:
                live.first = now
                self.sketches["ttft"].add(now - live.arrival)
            else:
                gap = now - live.last
                gaps[gap] = gaps.get(gap, 0) + 1
            live.last = now
        # Requests that decode in two steps running have the same gap, so there are few to count.
        for gap, times in gaps.items():
            self.sketches["itl"].add(gap, times)
        if lives:
            self._seconds.note(now, 2, num_tokens)
            self.output_tokens += num_tokens
            if now > self.end:  # replicas of a fleet end their steps in any order
                self.end = now

    def finished(self, live: Live) -> None:
        ttft, e2el = live.first - live.arrival, live.last - live.arrival
        tpot = (e2el - ttft) / (live.made - 1) if live.made > 1 else 0.0
        if live.made > 1:
            self.sketches["tpot"].add(tpot)
        self.sketches["e2el"].add(e2el)
        self.completed += 1
        self.input_tokens += live.prompt_len
        took = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
        self.good += all(took[name] * 1e3 <= limit for name, limit in self.goodput.items())
        self._seconds.note(live.last, 1)

    def state(self, now: float, running: int, waiting: int, usage: float) -> None:
        """How things stand right after a plan was made."""
        self.max_running = max(self.max_running, running)
        self.max_waiting = max(self.max_waiting, waiting)
        self.max_usage = max(self.max_usage, usage)
        self.timeline.add(self.num_steps, now, running, waiting, usage)

    def settle(self, now: float) -> None:
        """The clock has come to `now`, and all that arrived before is known."""
        self._seconds.settle(now)

    def result(self, num_preemptions: int) -> dict[str, Any]:
        """The figures, under the keys of `vllm bench serve --save-result`; ours come after them."""
        self._seconds.settle(float("inf"))
        duration = self.end
        per_s = 1 / duration if duration else 0.0
        both = self.input_tokens + self.output_tokens
        result: dict[str, Any] = {
            "duration": duration,
            "completed": self.completed,
            "failed": self.failed,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.completed * per_s,
            "request_goodput": self.good * per_s if self.goodput else None,
            "output_throughput": self.output_tokens * per_s,
            "total_token_throughput": both * per_s,
            "max_output_tokens_per_s": float(self._seconds.max_tokens),
            "max_concurrent_requests": self._seconds.max_requests,
        }
        for name, sketch in self.sketches.items():
            result[f"mean_{name}_ms"] = sketch.mean * 1e3
            result[f"median_{name}_ms"] = sketch.percentile(50) * 1e3
            result[f"std_{name}_ms"] = sketch.std * 1e3
            for p in self.percentiles:
                result[f"p{p:g}_{name}_ms"] = sketch.percentile(p) * 1e3
        steps = max(self.num_steps - self.empty_steps, 1)
        return result | {
            "num_steps": self.num_steps,
            "empty_steps": self.empty_steps,
            "requests_per_step": self.scheduled_reqs / steps,
            "tokens_per_step": self.scheduled_tokens / steps,
            "num_preemptions": num_preemptions,
            "computed_tokens": self.scheduled_tokens,
            "cached_prompt_tokens": self.cached_tokens,
            "max_running": self.max_running,
            "max_waiting": self.max_waiting,
            "max_kv_cache_usage_perc": self.max_usage,
            "device_busy_share": self.busy * per_s,
        }

"""What an engine counts where it is asked to: numbers of each request, and of all of them.

Mirrors `vllm/v1/metrics/reader.py` (the shapes that `get_metrics` returns) and, for names and buckets,
`loggers.py`; what one step counts is in `mini_vllm/metrics/stats.py`. Upstream the numbers live in
prometheus-client; here in plain counters, because the engine needs no package.
`mini_vllm/entrypoints/openai/metrics.py` has every metric.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.stats import SchedulerStats, SpecDecodingStats
from mini_vllm.metrics.stats import IterationStats
from mini_vllm.outputs import RequestOutput, RequestStateStats

# fmt: off
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0, 2560.0)
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0)
# fmt: on
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def build_1_2_5_buckets(max_value: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, … up to `max_value` (`vllm/v1/metrics/loggers.py:1259 build_1_2_5_buckets`).

    >>> build_1_2_5_buckets(100)
    (1, 2, 5, 10, 20, 50, 100)
    """
    values = (m * 10**e for e in range(len(str(max_value))) for m in (1, 2, 5))
    return tuple(value for value in values if value <= max_value)


@dataclass
class Metric:
    """One metric, read once (`vllm/v1/metrics/reader.py:12 Metric`)."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters in a row, which Prometheus does not know: one metric alone is read so, the accepted tokens
    by position in the draft (`vllm/v1/metrics/reader.py:32 Vector`)."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number as it is now."""

    value: float


@dataclass
class Histogram(Metric):
    """Observations by size: `buckets` maps an upper bound, as text, to how many were at most so
    large; `+Inf` to all of them."""

    count: int
    sum: float
    buckets: dict[str, int]


class BucketCounts:
    """Counts a bucket and a sum; written by one thread, read by any."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = tuple(buckets)
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper bound, as text, and how many were at most so large."""
        total = 0
        rows: list[tuple[str, float]] = []
        bounds = [*(str(float(bound)) for bound in self.buckets), "+Inf"]
        for bound, count in zip(bounds, list(self.counts), strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


def spec_decode_counters(stats: SpecDecodingStats) -> dict[str, int]:
    """By name, what vLLM counts of drafts beside the tokens by position
    (`vllm/v1/spec_decode/metrics.py:121 SpecDecodingProm`)."""
    return {
        "spec_decode_num_drafts": stats.num_drafts,
        "spec_decode_num_draft_tokens": stats.num_draft_tokens,
        "spec_decode_num_accepted_tokens": stats.num_accepted_tokens,
    }


@dataclass(slots=True)
class _Request:
    stats: RequestStateStats
    num_prompt_tokens: int
    num_cached_tokens: int = 0


class EngineMetrics:
    """Counts what an engine does, step by step.

    Args:
        config, scheduler, kv_cache_manager: the core's; `max_model_len` is set.
        model_name: value of the label `model_name`.
        clock: seconds, monotonic.

    Attributes:
        stat_loggers: called after each step with what it counted, as vLLM calls its loggers
            (`vllm/v1/metrics/loggers.py:44 StatLoggerBase`). The offline `LLM` at the pin leaves out
            steps that brought no token, and what they had counted; here they count.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        scheduler: Scheduler,
        kv_cache_manager: KVCacheManager,
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._kv_cache_manager = kv_cache_manager
        self._labels = {"model_name": model_name, "engine": "0"}
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._step: tuple[SchedulerStats, IterationStats] | None = None
        self.stat_loggers: list[Callable[[SchedulerStats, IterationStats], None]] = []
        self._counters = dict.fromkeys(
            ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens"), 0
        )
        self._spec_decoding: SpecDecodingStats | None = None
        if config.speculation is not None:
            self._spec_decoding = SpecDecodingStats(config.speculation.num_spec_tokens)
        self._success = dict.fromkeys(FINISH_REASONS, 0)
        lengths = build_1_2_5_buckets(config.max_model_len)
        self._histograms = {
            "time_to_first_token_seconds": BucketCounts(FIRST_TOKEN_BUCKETS),
            "e2e_request_latency_seconds": BucketCounts(LATENCY_BUCKETS),
            "request_generation_tokens": BucketCounts(lengths),
        }

    def add_request(
        self, request_id: str, arrival_time: float, num_prompt_tokens: int
    ) -> RequestStateStats:
        """Begin a request of the core (a child, where `n > 1`); its numbers are kept up to date."""
        stats = RequestStateStats(arrival_time=arrival_time, queued_ts=self._clock())
        self._requests[request_id] = _Request(stats, num_prompt_tokens)
        return stats

    def forget(self, request_ids: Iterable[str]) -> None:
        """The core's requests were aborted: they count nowhere, as in vLLM."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def observe_step(
        self,
        scheduler_output: SchedulerOutput,
        core_outputs: Sequence[EngineCoreOutput],
        scheduler_stats: SchedulerStats,
        seconds: float,
    ) -> None:
        """Take down one step, before its text is made. `seconds`: since it was scheduled."""
        now = self._clock()
        lost = len(scheduler_output.preempted_req_ids) + len(scheduler_output.reset_req_ids)
        iteration = IterationStats(num_preempted_reqs=lost)
        for new in scheduler_output.scheduled_new_reqs:
            request = self._requests.get(new.req_id)
            if request is not None:
                request.stats.scheduled_ts = now - seconds
        for output in core_outputs:
            request = self._requests.get(output.request_id)
            if request is None or not output.new_token_ids:
                continue
            request.num_cached_tokens = max(output.num_cached_tokens, 0)
            iteration.update_from_output(
                len(output.new_token_ids),
                now,
                request.stats,
                request.num_prompt_tokens,
                request.num_cached_tokens,
            )
        for latency in iteration.time_to_first_tokens_iter:
            self._histograms["time_to_first_token_seconds"].observe(latency)
        counters = self._counters
        counters["prompt_tokens"] += iteration.num_prompt_tokens
        counters["generation_tokens"] += iteration.num_generation_tokens
        counters["prefix_cache_queries"] += scheduler_stats.prefix_cache_stats.queries
        counters["prefix_cache_hits"] += scheduler_stats.prefix_cache_stats.hits
        if self._spec_decoding is not None and scheduler_stats.spec_decoding_stats is not None:
            self._spec_decoding.add(scheduler_stats.spec_decoding_stats)
        self._step = scheduler_stats, iteration

    def observe_outputs(self, outputs: Sequence[RequestOutput]) -> None:
        """Take down what has finished, and tell the loggers of the step that brought it."""
        if self._step is None:
            return
        scheduler_stats, iteration = self._step
        self._step = None
        for output in outputs:
            for completion in output.outputs:
                if completion.finish_reason is None:
                    continue
                request = self._requests.pop(
                    f"{completion.index}_{output.request_id}", None
                ) or self._requests.pop(output.request_id, None)
                if request is not None:
                    iteration.update_from_finished_request(
                        completion.finish_reason,
                        output.request_id,
                        request.num_prompt_tokens,
                        request.stats,
                        request.num_cached_tokens,
                    )
        for finished in iteration.finished_requests:
            self._success[finished.finish_reason] += 1
            self._histograms["e2e_request_latency_seconds"].observe(finished.e2e_latency)
            self._histograms["request_generation_tokens"].observe(finished.num_generation_tokens)
        for logger in self.stat_loggers:
            logger(scheduler_stats, iteration)

    def snapshot(self) -> list[Metric]:
        """Every metric as it is now, under vLLM's names."""
        scheduler = self._scheduler
        gauges = {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": scheduler.get_num_waiting_requests(),
            "kv_cache_usage_perc": self._kv_cache_manager.usage,
        }
        counters = {"num_preemptions": scheduler.num_preemptions, **self._counters}
        if self._spec_decoding is not None:
            counters |= spec_decode_counters(self._spec_decoding)
        found: list[Metric] = [Gauge(f"vllm:{n}", dict(self._labels), v) for n, v in gauges.items()]
        found += [Counter(f"vllm:{n}", dict(self._labels), v) for n, v in counters.items()]
        found += [
            Counter("vllm:request_success", {**self._labels, "finished_reason": reason}, count)
            for reason, count in self._success.items()
        ]
        if self._spec_decoding is not None:
            per_pos = list(self._spec_decoding.num_accepted_tokens_per_pos)
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            found.append(Vector(name, dict(self._labels), per_pos))
        for name, counts in self._histograms.items():
            rows = [(bound, int(count)) for bound, count in counts.cumulative()]
            found.append(
                Histogram(f"vllm:{name}", dict(self._labels), rows[-1][1], counts.sum, dict(rows))
            )
        return found

"""`/metrics`: the engine in Prometheus' format, under vLLM's names.

Names, labels, buckets and what is counted when: `vllm/v1/metrics/loggers.py:404 PrometheusStatLogger`
and `vllm/v1/metrics/stats.py:325 IterationStats`. Every name that a server shows there without any flag
is here too, with 0 for what cannot happen here (multi-modal caches, KV connectors, sleep), as it is 0
there while it does not happen; and what speculation and LoRA add. Not here: what other flags add.

vLLM observes prometheus-client's own histograms, once a token. Here the engine thread counts into
plain lists, and a collector turns them into metrics when asked: a token costs a fraction of a
microsecond.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mini_vllm.core.stats import SpecDecodingStats
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.metrics.reader import (
    FINISH_REASONS,
    FIRST_TOKEN_BUCKETS,
    LATENCY_BUCKETS,
    BucketCounts,
    build_1_2_5_buckets,
    spec_decode_counters,
)
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metrics import SpecDecodingLogging

if TYPE_CHECKING:
    from mini_vllm.lora.stats import LoRARequestStates

# fmt: off
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
            20.0, 40.0, 80.0)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# fmt: on
_NEVER = (
    ("external_prefix_cache_queries", "Tokens looked up in a KV connector."),
    ("external_prefix_cache_hits", "Tokens found in a KV connector."),
    ("mm_cache_queries", "Multi-modal inputs looked up in their cache."),
    ("mm_cache_hits", "Multi-modal inputs found in their cache."),
    ("estimated_flops_per_gpu", "Floating-point operations, estimated; vLLM counts with a flag."),
    ("estimated_read_bytes_per_gpu", "Bytes read from memory, estimated, likewise."),
    ("estimated_write_bytes_per_gpu", "Bytes written to memory, estimated, likewise."),
)
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class _Sequence:
    """One request of the engine core (of `n`, one each), as far as it is measured."""

    __slots__ = (
        "arrival",
        "cached",
        "first",
        "last",
        "num_prompt_tokens",
        "num_tokens",
        "scheduled",
    )

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.scheduled = self.first = self.last = 0.0
        self.num_tokens = self.num_prompt_tokens = self.cached = 0


class RequestMetrics:
    """One request in the metrics, from arrival to `close`. The event loop's."""

    def __init__(self, metrics: EngineMetrics, request_id: str, params: SamplingParams) -> None:
        self._metrics = metrics
        self._params = params
        ids = [request_id]
        if params.n > 1:
            ids = [f"{index}_{request_id}" for index in range(params.n)]
        self._ids = ids
        self._longest = 0
        arrival = time.perf_counter()
        metrics.sequences.update((child_id, _Sequence(arrival)) for child_id in ids)

    def finished(self, output: CompletionOutput) -> None:
        """Take down a completion, if this output ends it."""
        if output.finish_reason is None:
            return
        sequence = self._metrics.sequences.pop(self._ids[output.index], None)
        if sequence is not None:
            self._longest = max(self._longest, sequence.num_tokens)
            self._metrics.count_finished(sequence, output.finish_reason, self._params)

    def close(self) -> None:
        """The request is over; what has not finished was aborted, and counts nowhere, as in vLLM."""
        left = [self._metrics.sequences.pop(child_id, None) for child_id in self._ids]
        if not any(left):
            self._metrics.count_request(self._params.n, self._longest)


class EngineMetrics(Collector):
    """All of an engine's metrics, in a registry of its own.

    Args:
        llm: the engine to observe.
        model_name: value of the label `model_name`.
    """

    def __init__(self, llm: AsyncLLM, model_name: str) -> None:
        config = llm.engine.config
        lengths = build_1_2_5_buckets(config.max_model_len)
        self._llm = llm
        self._labels = [model_name, "0"]
        self.sequences: dict[str, _Sequence] = {}

        # The engine thread's.
        self.prompt_tokens = self.prompt_tokens_cached = self.generation_tokens = 0
        self.spec_decoding: SpecDecodingStats | None = None
        if config.speculation is not None:
            self.spec_decoding = SpecDecodingStats(config.speculation.num_spec_tokens)
        self._spec_logging = SpecDecodingLogging()
        self._spec_lock = threading.Lock()  # the engine thread counts, another logs
        self.iteration_tokens = BucketCounts(_STEP)
        self.time_to_first_token = BucketCounts(FIRST_TOKEN_BUCKETS)
        self.inter_token_latency = BucketCounts(_BETWEEN)
        # The event loop's.
        self.success = dict.fromkeys(FINISH_REASONS, 0)
        self.by_request = {
            "request_prompt_tokens": BucketCounts(lengths),
            "request_generation_tokens": BucketCounts(lengths),
            "request_max_num_generation_tokens": BucketCounts(lengths),
            "request_params_n": BucketCounts((1, 2, 5, 10, 20)),
            "request_params_max_tokens": BucketCounts(lengths),
            "request_time_per_output_token_seconds": BucketCounts(_BETWEEN),
            "e2e_request_latency_seconds": BucketCounts(LATENCY_BUCKETS),
            "request_queue_time_seconds": BucketCounts(LATENCY_BUCKETS),
            "request_inference_time_seconds": BucketCounts(LATENCY_BUCKETS),
            "request_prefill_time_seconds": BucketCounts(LATENCY_BUCKETS),
            "request_decode_time_seconds": BucketCounts(LATENCY_BUCKETS),
            "request_prefill_kv_computed_tokens": BucketCounts(lengths),
        }
        self.lora: LoRARequestStates | None = None
        if config.enable_lora:
            from mini_vllm.lora.stats import LoRARequestStates

            self.lora = LoRARequestStates()
        self._max_loras = config.max_loras
        self._created = time.time()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        llm.engine.engine_core.step_observers.append(self.observe_step)

    # -- counting ---------------------------------------------------------------------------------

    def request(self, request_id: str, params: SamplingParams) -> RequestMetrics:
        """Begin a request. Its id is the one that the engine gets."""
        return RequestMetrics(self, request_id, params)

    def observe_step(self, record: StepRecord) -> None:
        """Take down one step. Called in the engine thread."""
        now = time.perf_counter()
        sequences = self.sequences
        started = now - record.execute_time - record.update_time
        for new in record.scheduler_output.scheduled_new_reqs:
            sequence = sequences.get(new.req_id)
            if sequence is not None:
                sequence.scheduled = started
                sequence.num_prompt_tokens = len(new.prompt_token_ids)
        prompt_tokens = new_tokens = 0
        last, repeated = 0.0, 0  # most of a batch had its last token in the same step
        for output in record.outputs:
            num_new_tokens = len(output.new_token_ids)
            new_tokens += num_new_tokens
            sequence = sequences.get(output.request_id)
            if sequence is None:
                continue
            if sequence.num_tokens:
                if sequence.last != last:
                    if repeated:
                        self.inter_token_latency.observe(now - last, repeated)
                    last, repeated = sequence.last, 0
                repeated += 1
            else:
                sequence.first = now
                sequence.cached = max(output.num_cached_tokens, 0)
                self.time_to_first_token.observe(now - sequence.arrival)
                prompt_tokens += sequence.num_prompt_tokens
                self.prompt_tokens_cached += sequence.cached
            sequence.last = now
            sequence.num_tokens += num_new_tokens
        if repeated:
            self.inter_token_latency.observe(now - last, repeated)
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += new_tokens
        self.iteration_tokens.observe(prompt_tokens + new_tokens)
        drafted = record.scheduler_stats.spec_decoding_stats
        if self.spec_decoding is not None and drafted is not None:
            with self._spec_lock:
                self.spec_decoding.add(drafted)
                self._spec_logging.observe(drafted)
        if self.lora is not None:
            self.lora.observe_step(record.scheduler_output, record.outputs)

    def log(self, log_fn: Callable[..., None]) -> None:
        """Say how the drafts did since the last time, if there were any
        (`vllm/v1/metrics/loggers.py:217 LoggingStatLogger.log`). Called in any thread."""
        with self._spec_lock:
            self._spec_logging.log(log_fn)

    def count_finished(self, done: _Sequence, reason: str, params: SamplingParams) -> None:
        """Take down a completion that ended by itself. Called in the event loop's thread."""
        self.success[reason] = self.success.get(reason, 0) + 1
        values = {
            "request_prompt_tokens": done.num_prompt_tokens,
            "request_generation_tokens": done.num_tokens,
            "e2e_request_latency_seconds": done.last - done.arrival,
            "request_queue_time_seconds": done.scheduled - done.arrival,
            "request_inference_time_seconds": done.last - done.scheduled,
            "request_prefill_time_seconds": done.first - done.scheduled,
            "request_decode_time_seconds": done.last - done.first,
            "request_prefill_kv_computed_tokens": done.num_prompt_tokens - done.cached,
            "request_time_per_output_token_seconds": (done.last - done.first)
            / max(done.num_tokens - 1, 1),
        }
        if params.max_tokens is not None:
            values["request_params_max_tokens"] = params.max_tokens
        for name, value in values.items():
            self.by_request[name].observe(value)

    def count_request(self, n: int, longest: int) -> None:
        self.by_request["request_params_n"].observe(n)
        self.by_request["request_max_num_generation_tokens"].observe(longest)

    # -- showing ----------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Every metric as it stands. Called when `/metrics` is asked for."""
        stats, core = self._llm.stats, self._llm.engine.engine_core
        # After an abort no step may follow, so what may have gone is read where it stands.
        scheduler = core.scheduler
        yield self._gauge("num_requests_running", "Requests in the batch.", len(scheduler.running))
        waiting, deferred = len(scheduler.waiting), len(scheduler.skipped_waiting)
        yield self._gauge("num_requests_waiting", "Requests that wait.", waiting + deferred)
        reasons = (("capacity", waiting), ("deferred", deferred))
        yield self._split(
            "num_requests_waiting_by_reason", "Requests that wait, by reason.", "reason", reasons,
            GaugeMetricFamily,
        )  # fmt: skip
        states = (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
        yield self._split(
            "engine_sleep_state", "1 for the state that the engine is in.", "sleep_state", states,
            GaugeMetricFamily,
        )  # fmt: skip
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of KV blocks in use; 1 is all.",
            core.kv_cache_manager.usage,
        )
        yield self._config_info()
        counters = (
            ("prefix_cache_queries", "Tokens looked up in the prefix cache.",
             stats.prefix_cache_queries),
            ("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits),
            *((name, text, 0) for name, text in _NEVER),
            ("num_preemptions", "Preemptions since start.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens prefilled.", self.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens that were cached.", self.prompt_tokens_cached),
            ("generation_tokens", "Tokens generated.", self.generation_tokens),
        )  # fmt: skip
        for name, text, value in counters:
            yield self._counter(name, text, value)
        if self.spec_decoding is not None:
            yield from self._collect_spec_decoding(self.spec_decoding)
        if self.lora is not None:
            yield self._lora_info(self.lora)
        computed = self.prompt_tokens - self.prompt_tokens_cached
        by_source = zip(_SOURCES, (computed, self.prompt_tokens_cached, 0), strict=True)
        yield self._split(
            "prompt_tokens_by_source", "Prompt tokens by source.", "source", by_source
        )
        yield self._split(
            "request_success", "Completions finished, by reason.", "finished_reason",
            list(self.success.items()),
        )  # fmt: skip
        yield self._histogram("iteration_tokens_total", "Tokens in a step.", self.iteration_tokens)
        yield self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", self.time_to_first_token
        )
        yield self._histogram(
            "inter_token_latency_seconds", "From one token to the next.", self.inter_token_latency
        )
        for name, histogram in self.by_request.items():
            text = f"Per finished request: {name.replace('_', ' ')}."
            yield self._histogram(name, text, histogram)

    def _collect_spec_decoding(self, stats: SpecDecodingStats) -> Iterator[Metric]:
        for name, value in spec_decode_counters(stats).items():
            text = f"{name.removeprefix('spec_decode_num_').replace('_', ' ').capitalize()}."
            yield self._counter(name, text, value)
        per_pos = list(enumerate(stats.num_accepted_tokens_per_pos))
        yield self._split(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by position in the draft.",
            "position", [(str(position), count) for position, count in per_pos],
        )  # fmt: skip

    def _lora_info(self, states: LoRARequestStates) -> Metric:
        """A sample for each set of adapters that had requests at the same time, with the last time
        (`vllm/v1/metrics/loggers.py:1137 in PrometheusStatLogger.record`)."""
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily(
            "vllm:lora_requests_info", "Adapters with requests, and when.", labels=labels
        )
        for names, seconds in list(states.seen.items()):
            family.add_metric([str(self._max_loras), names, names], seconds)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=("model_name", "engine"))
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=("model_name", "engine"))
        family.add_metric(self._labels, value, self._created)
        return family

    def _split(
        self,
        name: str,
        text: str,
        label: str,
        values: Iterable[tuple[str, int]],
        kind: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily,
    ) -> Metric:
        """A metric with one label more. Of a counter's samples each tells when it began."""
        family = kind(f"vllm:{name}", text, labels=("model_name", "engine", label))
        created = (self._created,) if kind is CounterMetricFamily else ()
        for key, value in values:
            family.add_metric([*self._labels, key], value, *created)
        return family

    def _histogram(self, name: str, text: str, histogram: BucketCounts) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=("model_name", "engine"))
        family.add_metric(self._labels, histogram.cumulative(), histogram.sum)
        labels = dict(zip(("model_name", "engine"), self._labels, strict=True))
        family.add_sample(f"vllm:{name}_created", labels, self._created)
        return family

    def _config_info(self) -> Metric:
        config = self._llm.engine.config
        info = {
            "block_size": config.block_size,
            "num_gpu_blocks": config.num_gpu_blocks,
            "enable_prefix_caching": config.enable_prefix_caching,
            "engine": 0,
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache's settings.", labels=[*info]
        )
        family.add_metric([str(value) for value in info.values()], 1)
        return family

"""What scheduler and engine count in a step.

Mirrors `vllm/v1/metrics/stats.py`. Names and moments are vLLM's: a look-up in the prefix cache counts
at each attempt to admit a request, also where it then does not fit; a prompt counts in the step that
brings its first token.

Left out: what belongs to multi-modal caches, KV connectors, LoRA, drafts and graphs; block lifetimes.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mini_vllm.outputs import RequestStateStats

if TYPE_CHECKING:
    from mini_vllm.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput


@dataclass(slots=True)
class PrefixCacheStats:
    """Look-ups in the prefix cache since somebody last asked
    (`vllm/v1/metrics/stats.py:115 PrefixCacheStats`).

    Attributes:
        reset: the cache was emptied (`reset_prefix_cache`).
        requests, queries, hits: look-ups, tokens looked up and tokens found, for requests that were
            never preempted.
        preempted_requests, preempted_queries, preempted_hits: the same for those that were.
    """

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, num_tokens: int, num_hits: int, preempted: bool) -> None:
        """Count one look-up of `num_tokens` tokens, of which `num_hits` were found."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits


class CachingMetrics:
    """The hit rate that vLLM's log shows: over the last requests, 1,000 by default.

    Requests come in by the step, and leave so: the rate is over whole steps, the latest always among
    them. Preempted requests are not in it (`vllm/v1/metrics/stats.py:35 CachingMetrics`).
    """

    def __init__(self, max_recent_requests: int = 1000) -> None:
        self.max_recent_requests = max_recent_requests
        self.reset()

    def reset(self) -> None:
        self.aggregated_requests = 0
        self.aggregated_query_total = 0
        self.aggregated_query_hit = 0
        self.query_queue: deque[tuple[int, int, int]] = deque()

    def observe(self, stats: PrefixCacheStats) -> None:
        """Take in what one step counted."""
        if stats.reset:
            self.reset()
        if stats.requests == 0:
            return
        self._add(stats.requests, stats.queries, stats.hits)
        self.query_queue.append((stats.requests, stats.queries, stats.hits))
        while len(self.query_queue) > 1 and self.aggregated_requests > self.max_recent_requests:
            requests, queries, hits = self.query_queue.popleft()
            self._add(-requests, -queries, -hits)

    def _add(self, requests: int, queries: int, hits: int) -> None:
        self.aggregated_requests += requests
        self.aggregated_query_total += queries
        self.aggregated_query_hit += hits

    @property
    def hit_rate(self) -> float:
        """Tokens found of tokens looked up, 0.0 to 1.0; 0.0 if none was looked up."""
        if self.aggregated_query_total == 0:
            return 0.0
        return self.aggregated_query_hit / self.aggregated_query_total


@dataclass(slots=True)
class SchedulerStats:
    """The scheduler after a step (`vllm/v1/metrics/stats.py:171 SchedulerStats`).

    Attributes:
        num_running_reqs: requests that run; a request with `n > 1` counts `n` times.
        num_waiting_reqs: requests that wait, preempted ones among them.
        kv_cache_usage: share of usable KV blocks that are held, 0.0 to 1.0.
        prefix_cache_stats: look-ups since the stats were made last.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)


@dataclass(slots=True)
class PromptTokenStats:
    """Prompt tokens by where their KV came from (`vllm/v1/metrics/stats.py:277 PromptTokenStats`).

    Counted once a request, in the step of its first token: what a victim computes again afterwards
    is in none of them.

    Attributes:
        computed: computed here.
        local_cache_hit: found in the prefix cache.
        total: the two together.
    """

    computed: int = 0
    local_cache_hit: int = 0
    total: int = 0

    def add(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        self.computed += num_prompt_tokens - num_cached_tokens
        self.local_cache_hit += num_cached_tokens
        self.total += num_prompt_tokens


@dataclass(slots=True)
class FinishedRequestStats:
    """A request that ended by itself (`vllm/v1/metrics/stats.py:224 FinishedRequestStats`).

    Times in seconds. Queued: until it was first scheduled. Prefill: from there to the first token,
    decode: from there to the last, both with whatever preemptions cost; inference is the two.
    """

    finish_reason: str
    request_id: str
    e2e_latency: float
    num_prompt_tokens: int
    num_generation_tokens: int
    queued_time: float
    prefill_time: float
    inference_time: float
    decode_time: float
    mean_time_per_output_token: float
    num_cached_tokens: int


@dataclass(slots=True)
class IterationStats:
    """What one step brought to the front (`vllm/v1/metrics/stats.py:325 IterationStats`).

    Attributes:
        iteration_timestamp: seconds since 1970.
        num_generation_tokens: tokens sampled.
        prompt_token_stats: prompts whose first token came.
        num_preempted_reqs: preemptions in the step.
        time_to_first_tokens_iter: seconds from arrival, for each first token.
        inter_token_latencies_iter: seconds since the token before, for each later one.
        finished_requests: those that ended by themselves.
    """

    iteration_timestamp: float = field(default_factory=time.time)
    num_generation_tokens: int = 0
    prompt_token_stats: PromptTokenStats = field(default_factory=PromptTokenStats)
    num_preempted_reqs: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_token_stats.total

    def update_from_output(
        self,
        num_new_tokens: int,
        engine_core_timestamp: float,
        req_stats: RequestStateStats,
        num_prompt_tokens: int,
        num_cached_tokens: int,
    ) -> None:
        """Take in one request's new tokens, and bring `req_stats` up to date.

        Args:
            num_new_tokens: at least 1.
            engine_core_timestamp: when the step was over, seconds of the clock of `req_stats`' `_ts`.
            num_prompt_tokens, num_cached_tokens: looked at with the first tokens only.
        """
        self.num_generation_tokens += num_new_tokens
        if req_stats.num_generation_tokens == 0:
            self.prompt_token_stats.add(num_prompt_tokens, num_cached_tokens)
            req_stats.first_token_latency = self.iteration_timestamp - req_stats.arrival_time
            self.time_to_first_tokens_iter.append(req_stats.first_token_latency)
            req_stats.first_token_ts = engine_core_timestamp
        else:
            self.inter_token_latencies_iter.append(engine_core_timestamp - req_stats.last_token_ts)
        req_stats.num_generation_tokens += num_new_tokens
        req_stats.last_token_ts = engine_core_timestamp

    def update_from_finished_request(
        self,
        finish_reason: str,
        request_id: str,
        num_prompt_tokens: int,
        req_stats: RequestStateStats,
        num_cached_tokens: int,
    ) -> None:
        decode_time = req_stats.last_token_ts - req_stats.first_token_ts
        later_tokens = req_stats.num_generation_tokens - 1
        self.finished_requests.append(
            FinishedRequestStats(
                finish_reason=finish_reason,
                request_id=request_id,
                e2e_latency=self.iteration_timestamp - req_stats.arrival_time,
                num_prompt_tokens=num_prompt_tokens,
                num_generation_tokens=req_stats.num_generation_tokens,
                queued_time=req_stats.scheduled_ts - req_stats.queued_ts,
                prefill_time=req_stats.first_token_ts - req_stats.scheduled_ts,
                inference_time=req_stats.last_token_ts - req_stats.scheduled_ts,
                decode_time=decode_time,
                mean_time_per_output_token=decode_time / later_tokens if later_tokens > 0 else 0.0,
                num_cached_tokens=num_cached_tokens,
            )
        )


@dataclass(slots=True)
class StepRecord:
    """One step, as an observer sees it: after the update, before the text is made.

    Times are seconds of wall clock. With asynchronous scheduling the next step is planned by then,
    and the times of steps overlap.
    """

    index: int
    scheduler_output: SchedulerOutput
    model_runner_output: ModelRunnerOutput
    outputs: list[EngineCoreOutput]
    schedule_time: float
    execute_time: float
    update_time: float
    scheduler_stats: SchedulerStats = field(default_factory=SchedulerStats)

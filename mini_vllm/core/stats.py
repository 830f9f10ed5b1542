"""What the scheduler counts in a step.

Mirrors the part of `vllm/v1/metrics/stats.py` that the core fills: a look-up in the prefix cache counts
at each attempt to admit a request, also where it then does not fit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class PrefixCacheStats:
    """Look-ups in the prefix cache since they were last asked for
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
class SpecDecodingStats:
    """Drafts since the stats were made last (`vllm/v1/spec_decode/metrics.py:18 SpecDecodingStats`).

    Attributes:
        num_spec_tokens: most drafted tokens a request and step.
        num_drafts: times that a request had drafts to check.
        num_draft_tokens, num_accepted_tokens: tokens in them, and how many of those were accepted.
        num_accepted_tokens_per_pos: drafts whose token at this position was accepted.
    """

    num_spec_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.num_accepted_tokens_per_pos:
            self.num_accepted_tokens_per_pos = [0] * self.num_spec_tokens

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one request's drafts of one step
        (`vllm/v1/spec_decode/metrics.py:39 SpecDecodingStats.observe_draft`)."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    def add(self, other: SpecDecodingStats) -> None:
        """Count what another has counted, too."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        for position, count in enumerate(other.num_accepted_tokens_per_pos):
            self.num_accepted_tokens_per_pos[position] += count


@dataclass(slots=True)
class SchedulerStats:
    """The scheduler after a step (`vllm/v1/metrics/stats.py:171 SchedulerStats`).

    Attributes:
        num_running_reqs: requests that run; a request with `n > 1` counts `n` times.
        num_waiting_reqs: requests that wait, preempted ones among them.
        num_skipped_waiting_reqs: requests that were passed over, as they wait for something of their own.
        kv_cache_usage: share of usable KV blocks that are held, 0.0 to 1.0.
        prefix_cache_stats: look-ups since the stats were made last.
        spec_decoding_stats: drafts since then; None where there were none.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    spec_decoding_stats: SpecDecodingStats | None = None
    num_skipped_waiting_reqs: int = 0

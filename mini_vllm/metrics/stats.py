"""What the front end counts of a step; what the scheduler counts is in `core/stats.py`.

Mirrors `vllm/v1/metrics/stats.py`. Names and moments are vLLM's: a prompt counts in the step that brings
its first token.

Left out: what belongs to multi-modal caches, KV connectors, LoRA and graphs; block lifetimes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mini_vllm.outputs import RequestStateStats

if TYPE_CHECKING:
    pass


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

"""The scheduler's settings.

Mirrors `vllm/config/scheduler.py`. Left out: encoders' budgets, partial prefills, a scheduler of one's own by
name (`engine/parts.py` takes one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mini_vllm.config.checks import check_flag, check_integer, check_one_of
from mini_vllm.utils.untrusted import shorten_repr

RELEASES = (
    "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0",
    "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
"""The pin, and each release of vLLM after it whose rules are known, in order."""
PIN = RELEASES[0]


@dataclass(frozen=True)
class SchedulerConfig:
    """How many requests and tokens a step may have, and in which order.

    Attributes:
        max_num_seqs: most requests running at once.
        max_num_batched_tokens: the token budget of a step. None: 4096, or `max_model_len` where
            that is more and chunked prefill is off.
        long_prefill_token_threshold: no request gets more tokens than this in a step; 0: no limit.
        enable_chunked_prefill: a prompt may be computed over several steps.
        scheduling_policy: `fcfs` or `priority`.
        scheduler_reserve_full_isl: admit a request only if its whole current sequence fits
            (`vllm/config/scheduler.py:140 SchedulerConfig.scheduler_reserve_full_isl`).
        async_scheduling: plan a step while the one before is computed. Off, as vLLM has it on a CPU
            (`vllm/platforms/cpu.py:135 in CpuPlatform.check_and_update_config`); on a GPU it is on at
            the pin wherever it can be (`vllm/config/vllm.py:935 in VllmConfig.__post_init__`).
        stream_interval: tokens that a streamed delta has at least, but for a request's first and last
            (`vllm/config/scheduler.py:151 SchedulerConfig.stream_interval`).
        rules: the release of vLLM to decide like, one of `RELEASES` (`core/sched/releases.py`).
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    stream_interval: int = 1
    rules: str = PIN

    def _check_scheduler(self) -> None:
        check_integer("max_num_seqs", self.max_num_seqs, 1)
        check_integer("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_integer("stream_interval", self.stream_interval, 1)
        if self.max_num_batched_tokens is not None:
            check_integer("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_one_of("rules", self.rules, RELEASES)
        for name in ("enable_chunked_prefill", "scheduler_reserve_full_isl", "async_scheduling"):
            check_flag(name, getattr(self, name))
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(
                f"Unknown scheduling_policy {shorten_repr(self.scheduling_policy)}: use 'fcfs' or "
                "'priority'"
            )

"""The line that tells how well the drafts do.

Mirrors `vllm/v1/spec_decode/metrics.py:48 SpecDecodingLogging`. What a step counts is in `core/stats.py`; the
counters of `/metrics` are in `entrypoints/openai/metrics.py`, those of `get_metrics` in `metrics/reader.py`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from mini_vllm.core.stats import SchedulerStats, SpecDecodingStats

logger = logging.getLogger("mini_vllm.spec_decode")

_LINE = (
    "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f tokens/s, "
    "Drafted throughput: %.2f tokens/s, Accepted: %d tokens, Drafted: %d tokens, "
    "Per-position acceptance rate: %s, Avg Draft acceptance rate: %.1f%%"
)


class SpecDecodingLogging:
    """Sums up steps until a line is asked for, and then begins anew.

    Three of its numbers have three denominators. The mean acceptance length is accepted tokens per draft,
    and one more: the token that the model adds itself. The rate of a position is per draft, too, also where
    the draft was shorter than that. The average rate is per drafted token.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self.total: SpecDecodingStats | None = None  # since the last line; None: no drafts
        self._since = self._clock()

    def observe(self, stats: SpecDecodingStats) -> None:
        """Take in what one step counted."""
        if self.total is None:
            self.total = SpecDecodingStats(stats.num_spec_tokens)
        self.total.add(stats)

    def log(self, log_fn: Callable[..., Any] = logger.info) -> None:
        """Give `log_fn` a format and its arguments, unless there was no draft since the last time."""
        total = self.total
        if total is None:
            return
        elapsed = self._clock() - self._since
        accepted, drafted = total.num_accepted_tokens, total.num_draft_tokens
        rates = [number / total.num_drafts for number in total.num_accepted_tokens_per_pos]
        log_fn(
            _LINE,
            1 + accepted / total.num_drafts,
            accepted / elapsed if elapsed > 0 else 0,
            drafted / elapsed if elapsed > 0 else 0,
            accepted,
            drafted,
            ", ".join(f"{rate:.3f}" for rate in rates),
            accepted / drafted * 100 if drafted else float("nan"),
        )
        self.reset()


def log_stats_interval() -> float:
    """Seconds from line to line: `VLLM_LOG_STATS_INTERVAL`, or 10 (`vllm/envs.py:806`).

    Raises ValueError if that is no number.
    """
    text = os.environ.get("VLLM_LOG_STATS_INTERVAL", "10")
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"VLLM_LOG_STATS_INTERVAL must be a number, got {text!r}") from None
    return seconds if seconds > 0 else 10.0


class SpecDecodingStatLogger:
    """One of an engine's `stat_loggers`: counts steps, and logs a line where the last is long enough ago
    (`vllm/v1/engine/llm_engine.py:385 LLMEngine.do_log_stats_with_interval`).

    The line is of level INFO, which Python shows where logging is set up for it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval = log_stats_interval()
        self._last = clock()
        self._logging = SpecDecodingLogging(clock)

    def __call__(self, scheduler_stats: SchedulerStats, iteration_stats: object) -> None:
        if scheduler_stats.spec_decoding_stats is not None:
            self._logging.observe(scheduler_stats.spec_decoding_stats)
        if self._clock() - self._last >= self._interval:
            self._last = self._clock()
            self._logging.log()

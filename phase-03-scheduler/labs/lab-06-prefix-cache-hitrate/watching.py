"""Given: what a workload leaves behind in vLLM's meters. Worth reading, nothing to write.

`play` takes an engine through a workload and returns a record of plain numbers. It reaches into the
scheduler, so the engine core must live in the process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), and
scheduling must be synchronous (`async_scheduling=False`; a CPU's default, not a GPU's).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

COUNTED = (
    "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:prompt_tokens",
    "vllm:prompt_tokens_cached", "vllm:generation_tokens", "vllm:num_preemptions",
)  # fmt: skip
BY_SOURCE = "vllm:prompt_tokens_by_source"


def plain(request_id: str) -> str:
    """The id that the user gave: without the eight hexadecimal digits that vLLM appends."""
    return re.sub(r"-[0-9a-f]{8}$", "", request_id)


def counters(metrics: Sequence[Any]) -> dict[str, int]:
    """The counters of `LLM.get_metrics` that this lab is about, those by source with their label."""
    found = {}
    for metric in metrics:
        if metric.name in COUNTED:
            found[metric.name] = int(metric.value)
        if metric.name == BY_SOURCE:
            found[f"{BY_SOURCE}{{source={metric.labels['source']}}}"] = int(metric.value)
    return found


class Lines(logging.Handler):
    """Keeps what vLLM's logger of metrics says."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Watch:
    """One engine, step by step: who is looked up, what is computed, and what the core says of it.

    The wrappers change nothing. `server` is a second `LoggingStatLogger` of vLLM's own, which is told
    of every step, as a server's is; the offline `LLM`'s is told only of steps with output.
    """

    def __init__(self, engine: Any, logger_class: Any) -> None:
        self.engine = engine
        self.core = engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.manager = self.scheduler.kv_cache_manager
        self.logger_class = logger_class
        self.look_up = self.manager.get_computed_blocks
        self.manager.get_computed_blocks = self.watched_look_up
        self.schedule = self.scheduler.schedule
        self.scheduler.schedule = self.watched_schedule
        self.make_stats = self.scheduler.make_stats
        self.scheduler.make_stats = self.watched_stats
        self.begin()

    def begin(self) -> None:
        """Forget what was seen."""
        self.lookups: list[list[Any]] = []
        self.computed: dict[str, int] = {}
        self.usage: list[float] = []
        self.sent = {"requests": 0, "queries": 0, "hits": 0}
        self.sent_preempted = dict(self.sent)
        self.server = self.logger_class(self.engine.vllm_config)

    def watched_look_up(self, request: Any) -> Any:
        stats = self.manager.prefix_cache_stats
        before = stats.requests + stats.preempted_requests
        blocks, num_hits = self.look_up(request)
        if stats.requests + stats.preempted_requests > before:  # else it did not look
            name, again = plain(request.request_id), int(request.num_preemptions > 0)
            self.lookups.append([name, request.num_tokens, num_hits, again])
        return blocks, num_hits

    def watched_schedule(self) -> Any:
        output = self.schedule()
        self.computed = {plain(name): n for name, n in output.num_scheduled_tokens.items()}
        return output

    def watched_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = self.make_stats(*args, **kwargs)
        found = stats.prefix_cache_stats
        for name in self.sent:
            self.sent[name] += getattr(found, name)
            self.sent_preempted[name] += getattr(found, f"preempted_{name}")
        self.usage.append(stats.kv_cache_usage)
        self.server.record(scheduler_stats=stats, iteration_stats=None)
        return stats

    def line(self) -> str:
        """What the server's logger says now, from the KV cache on (the rest depends on the clock)."""
        logger, lines = logging.getLogger("vllm.v1.metrics.loggers"), Lines()
        level = logger.level
        logger.addHandler(lines)
        logger.setLevel(logging.DEBUG)  # an idle server says it in a whisper
        try:
            self.server.log()
        finally:
            logger.removeHandler(lines)
            logger.setLevel(level)
        [line] = [line for line in lines.lines if "Prefix cache hit rate" in line]
        return line[line.index("GPU KV cache usage") :]


def play(
    watch: Watch,
    rounds: Sequence[Sequence[Any]],
    encode: Callable[[str, bool], list[int]],
    sampling_params: Callable[..., Any],
    metrics: Callable[[], Sequence[Any]],
) -> dict[str, Any]:
    """Take the engine through a workload, from an empty prefix cache; its record.

    Greedy, with `ignore_eos`: how many tokens a request makes does not depend on which.
    """
    engine = watch.engine
    if not engine.reset_prefix_cache():
        raise RuntimeError("the prefix cache is in use")
    watch.begin()
    before = counters(metrics())
    prompts: dict[str, list[int]] = {}
    answers: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    steps: list[list[Any]] = []
    for asks in rounds:
        for ask in asks:
            past = prompts[ask.follows] + answers[ask.follows] if ask.follows else []
            prompts[ask.name] = past + encode(ask.text, not past)
            prompt: dict[str, Any] = {"prompt_token_ids": prompts[ask.name]}
            if ask.salt:
                prompt["cache_salt"] = ask.salt
            params = sampling_params(
                temperature=0, max_tokens=ask.max_tokens, ignore_eos=True,
                prompt_logprobs=0 if ask.prompt_logprobs else None,
            )  # fmt: skip
            engine.add_request(ask.name, prompt, params)
        while engine.has_unfinished_requests():
            watch.lookups, watch.computed = [], {}
            outputs = engine.step()
            for output in outputs:
                answers[plain(output.request_id)] = list(output.outputs[0].token_ids)
                cached[plain(output.request_id)] = output.num_cached_tokens
            sampled = sorted(plain(output.request_id) for output in outputs)
            step = [watch.lookups, watch.computed, sampled]
            if steps and steps[-1][1:] == step:
                steps[-1][0] += 1
            else:
                steps.append([1, *step])
    after = counters(metrics())
    window = watch.server.prefix_caching_metrics
    return {
        "steps": steps,
        "num_prompt_tokens": {name: len(tokens) for name, tokens in prompts.items()},
        "answers": answers,
        "num_cached_tokens": cached,
        "sent": watch.sent,
        "sent_preempted": watch.sent_preempted,
        "counters": {name: after[name] - before.get(name, 0) for name in after},
        "window": [
            window.aggregated_requests, window.aggregated_query_total, window.aggregated_query_hit,
        ],
        "log": watch.line(),
        "usage": [round(u, 6) for u in (watch.usage[0], max(watch.usage), watch.usage[-1])],
    }  # fmt: skip

"""What is counted of drafts: the line in the log, and the counters by vLLM's names."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm import LLMEngine
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core.stats import SchedulerStats, SpecDecodingStats
from mini_vllm.metrics.reader import Counter, Vector
from mini_vllm.spec_decode.metrics import (
    SpecDecodingLogging,
    SpecDecodingStatLogger,
    log_stats_interval,
)
from tests.engine.helpers.patience import PATIENCE

SPEC = {"method": "ngram", "num_speculative_tokens": 3}
NAMES = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
)


class Clock:
    """Seconds, as told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def one_step(*drafts: tuple[int, int], k: int = 3) -> SpecDecodingStats:
    """The stats of a step with these drafts: drafted and accepted."""
    stats = SpecDecodingStats(k)
    for drafted, accepted in drafts:
        stats.observe_draft(drafted, accepted)
    return stats


def lines_of(log: Any) -> list[str]:
    """What the logger says, as text."""
    said: list[str] = []
    log.log(lambda text, *args: said.append(text % args))
    return said


def test_the_line_has_three_denominators() -> None:
    """Two drafts of 3 and 2 tokens, 3 and 1 accepted, in 2 seconds."""
    clock = Clock()
    logging = SpecDecodingLogging(clock)
    logging.observe(one_step((3, 3)))
    logging.observe(one_step((2, 1)))
    clock.now += 2
    assert lines_of(logging) == [
        "SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: 2.00 tokens/s, "
        "Drafted throughput: 2.50 tokens/s, Accepted: 4 tokens, Drafted: 5 tokens, "
        "Per-position acceptance rate: 1.000, 0.500, 0.500, Avg Draft acceptance rate: 80.0%"
    ]


def test_a_line_begins_anew_and_without_drafts_there_is_none() -> None:
    """The second line is about what came after the first."""
    clock = Clock()
    logging = SpecDecodingLogging(clock)
    assert lines_of(logging) == []
    logging.observe(one_step((3, 3)))
    assert "Accepted: 3 tokens" in lines_of(logging)[0]
    assert lines_of(logging) == []
    logging.observe(one_step((3, 0)))
    assert "Mean acceptance length: 1.00" in lines_of(logging)[0]


def test_an_engine_logs_every_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or as VLLM_LOG_STATS_INTERVAL says."""
    clock = Clock()
    logger = SpecDecodingStatLogger(clock)
    stats = SchedulerStats(spec_decoding_stats=one_step((3, 2)))
    with caplog.at_level("INFO"):
        for _ in range(25):
            clock.now += 1
            logger(stats, None)
    assert [record.getMessage().count("Accepted: 20 tokens") for record in caplog.records] == [1, 1]
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "0.5")
    assert log_stats_interval() == 0.5
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "-1")
    assert log_stats_interval() == 10.0, "as in vLLM"
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "often")
    with pytest.raises(ValueError, match="VLLM_LOG_STATS_INTERVAL must be a number, got 'often'"):
        log_stats_interval()


def test_get_metrics_has_the_counters_where_there_is_speculation() -> None:
    """All four from the start, and none without."""
    config = EngineConfig(num_gpu_blocks=16, max_model_len=64, speculative_config=SPEC)
    engine = LLMEngine(config=config, log_stats=True)
    found = {metric.name: metric for metric in engine.get_metrics()}
    assert {name: vars(found[name]) for name in NAMES} == {
        name: {"name": name, "labels": {"model_name": str(DEFAULT_MODEL), "engine": "0"}}
        | ({"values": [0, 0, 0]} if name.endswith("per_pos") else {"value": 0})
        for name in NAMES
    }
    assert engine.metrics is not None
    for step in (one_step((3, 3), (2, 1)), one_step((3, 0))):
        engine.metrics.observe_step(
            SimpleNamespace(preempted_req_ids=[], reset_req_ids=[], scheduled_new_reqs=[]),
            [], SchedulerStats(spec_decoding_stats=step), 0.0,
        )  # fmt: skip
    values = {}
    for metric in engine.get_metrics():
        if metric.name in NAMES:
            assert isinstance(metric, Counter | Vector)
            values[metric.name] = metric.value if isinstance(metric, Counter) else metric.values
    assert values == dict(zip(NAMES, (3, 8, 4, [2, 1, 1]), strict=True))

    without = LLMEngine(config=EngineConfig(num_gpu_blocks=16, max_model_len=64), log_stats=True)
    assert not [metric for metric in without.get_metrics() if "spec_decode" in metric.name]


def test_prometheus_shows_them_by_position() -> None:
    """With the label `position`; without speculation there are none."""
    pytest.importorskip("prometheus_client")
    from prometheus_client import generate_latest

    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.entrypoints.openai.metrics import EngineMetrics

    for spec in (SPEC, None):
        config = EngineConfig(num_gpu_blocks=16, max_model_len=64, speculative_config=spec)
        llm = AsyncLLM(LLMEngine(config=config))
        try:
            metrics = EngineMetrics(llm, "tiny")
            if spec is not None:
                record = SimpleNamespace(
                    scheduler_stats=SchedulerStats(spec_decoding_stats=one_step((3, 3), (2, 1))),
                    scheduler_output=SimpleNamespace(scheduled_new_reqs=[]),
                    outputs=[
                        SimpleNamespace(request_id="0", new_token_ids=[5, 6, 7, 8]),
                        SimpleNamespace(request_id="1", new_token_ids=[5, 6]),
                    ],
                    execute_time=0.0, update_time=0.0,
                )  # fmt: skip
                metrics.observe_step(record)  # type: ignore[arg-type]
            text = generate_latest(metrics.registry).decode()
            lines = [
                line
                for line in text.splitlines()
                if line.startswith("vllm:spec_decode") and "_created{" not in line
            ]
            said: list[str] = []
            metrics.log(lambda text, *args, said=said: said.append(text % args))
        finally:
            llm.shutdown(timeout=PATIENCE)
        labels = 'engine="0",model_name="tiny"'
        if spec is None:
            assert not lines
            assert not said
            continue
        expected = [
            f"{name}_total{{{labels}}} {n}.0" for name, n in zip(NAMES, (2, 5, 4), strict=False)
        ]
        per_pos = f"{NAMES[3]}_total{{{labels},position="
        expected += [f'{per_pos}"{place}"}} {n}.0' for place, n in enumerate((2, 1, 1))]
        assert lines == expected
        assert f"vllm:generation_tokens_total{{{labels}}} 6.0" in text, "all of a step's tokens"
        assert [line.count("Accepted: 4 tokens, Drafted: 5 tokens") for line in said] == [1]


@pytest.mark.vllm
def test_vllm_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logger's text, for random stats."""
    from vllm.v1.spec_decode import metrics as upstream

    rng = random.Random(8)
    clock = Clock()
    monkeypatch.setattr(upstream.time, "monotonic", clock)
    for _ in range(300):
        k = rng.randint(1, 6)
        mine, theirs = SpecDecodingLogging(clock), upstream.SpecDecodingLogging()
        for _ in range(rng.randint(0, 5)):
            drafts = [(rng.randint(0, k), 0) for _ in range(rng.randint(1, 4))]
            drafts = [(drafted, rng.randint(0, drafted)) for drafted, _ in drafts]
            mine.observe(one_step(*drafts, k=k))
            stats = upstream.SpecDecodingStats.new(k)
            for drafted, accepted in drafts:
                stats.observe_draft(drafted, accepted)
            theirs.observe(stats)
        clock.now += rng.choice((0, 0.5, 10.0))
        said: list[str] = []
        theirs.log(lambda text, *args, said=said: said.append(text % args))
        assert lines_of(mine) == said


@pytest.mark.vllm
def test_vllm_has_these_names() -> None:
    """The names and labels that its Prometheus part registers."""
    from vllm.v1.spec_decode.metrics import SpecDecodingProm

    made = {}

    class Recorded:
        def __init__(self, name: str, documentation: str, labelnames: list[str]) -> None:
            made[name] = labelnames

        def labels(self, *values: object) -> Recorded:
            return self

    class Recording(SpecDecodingProm):
        _counter_cls = Recorded

    config: Any = SimpleNamespace(num_speculative_tokens=3)
    Recording(config, ["model_name", "engine"], {0: ["tiny", "0"]})
    labels = ["model_name", "engine"]
    assert made == dict.fromkeys(NAMES[:3], labels) | {NAMES[3]: [*labels, "position"]}

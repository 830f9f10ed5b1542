"""Drafts in a trace: how many each request checked, and what became of them."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.metrics.reader import Counter
from mini_vllm.trace import Trace, TraceRecorder, to_text
from mini_vllm.trace.data import TraceDataError, dumps, from_data, loads, to_data
from tests.engine.helpers.thorough import either

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 4,
}
# The model drafts for itself, and its first pass has a row more for each request.
ITSELF = {"method": "draft_model", "model": DEFAULT_MODEL, "num_speculative_tokens": 3}
DRAFTERS = {"ngram": NGRAM, "itself": ITSELF}
PROMPTS = (
    "Blocks 1 2 3 4, blocks 1 2 3 4, blocks 1 2", "The scheduler", "Prefix caching",
    "A request that is preempted keeps its tokens. A request that is", "a a a a a a a", "The scheduler",
)  # fmt: skip


def play(spec: dict[str, Any], max_tokens: int = 20, **settings: Any) -> tuple[LLMEngine, Trace]:
    """The prompts, a new one every other step, recorded."""
    settings = {"num_gpu_blocks": 200, "max_model_len": 128, "max_num_seqs": 4} | settings
    engine = LLMEngine(config=EngineConfig(speculative_config=spec, **settings), log_stats=True)
    recorder = TraceRecorder(engine)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for name, prompt in enumerate(PROMPTS):
        engine.add_request(str(name), prompt, params)
        engine.step()
        engine.step()
    while engine.has_unfinished_requests():
        engine.step()
    return engine, recorder.trace


@functools.cache
def played(drafter: str, async_scheduling: bool = False) -> tuple[LLMEngine, Trace]:
    """One long run of each kind, for tests that only look at it."""
    return play(DRAFTERS[drafter], 30, async_scheduling=async_scheduling)


def against_the_rules(trace: Trace) -> list[str]:
    """Every reason that says a decision was not by vLLM's rules."""
    found = []
    for step in trace.steps:
        said = [*step.why.values(), step.why_waiting, *(part.why for part in step.scheduled)]
        found += [f"step {step.index}: {why}" for why in said if "not by vLLM's rules" in why]
    return found


@pytest.mark.parametrize(
    ("drafter", "async_scheduling"), [("ngram", False), ("itself", False), ("itself", True)]
)
def test_the_trace_counts_what_the_engine_counts(drafter: str, async_scheduling: bool) -> None:
    """Drafts, drafted and accepted tokens; and the accepted are among the sampled. Asynchronous scheduling
    refuses n-grams."""
    engine, trace = played(drafter, async_scheduling)
    parts = [part for step in trace.steps for part in step.scheduled if part.draft_token_ids]
    counted = {
        metric.name.removeprefix("vllm:spec_decode_num_"): metric.value
        for metric in engine.get_metrics()
        if isinstance(metric, Counter)
    }
    assert len(parts) == counted["drafts"] > 20
    assert sum(len(part.draft_token_ids) for part in parts) == counted["draft_tokens"]
    assert sum(part.num_accepted_tokens for part in parts) == counted["accepted_tokens"] > 10
    for part in parts:
        accepted = part.draft_token_ids[: part.num_accepted_tokens]
        assert part.new_token_ids[: len(accepted)] == accepted[: len(part.new_token_ids)]
        rejected = part.draft_token_ids[part.num_accepted_tokens :]
        assert len(rejected) == part.num_rejected_tokens
        assert all((token == -1) == async_scheduling for token in rejected)
    assert not against_the_rules(trace)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_every_decision_with_drafts_has_a_reason_by_the_rules(async_scheduling: bool) -> None:
    """In narrow pools, with small budgets, near max_model_len, under both policies."""
    preempted = cut = 0
    brief = [9 if async_scheduling else 3]  # in each some are preempted, and some drafts cut off
    for seed in either(brief, list(range(40))):
        rng = random.Random(seed)
        spec = ITSELF if async_scheduling else rng.choice([NGRAM, ITSELF])
        _, trace = play(
            spec | {"num_speculative_tokens": rng.randint(1, 5)},
            max_tokens=rng.randint(10, 60),
            async_scheduling=async_scheduling,
            num_gpu_blocks=rng.randint(12, 16),
            max_model_len=128,
            max_num_batched_tokens=rng.choice([12, 16, 40]),
            long_prefill_token_threshold=rng.choice([0, 3, 9]),
            scheduling_policy=rng.choice(["fcfs", "priority"]),
        )
        assert not against_the_rules(trace), seed
        preempted += sum(len(step.preempted) for step in trace.steps)
        for step in trace.steps:
            cut += sum("were missing" in p.why for p in step.scheduled if p.kind == "decode")
    assert preempted > 0
    assert cut > 0, "budgets and thresholds cut drafts off"


def test_the_text_says_what_became_of_them() -> None:
    """Which were drafted, how many were accepted, and what was sampled."""
    _, trace = played("ngram")
    text = to_text(trace.steps)
    for step in trace.steps:
        for part in step.scheduled:
            if part.draft_token_ids:
                drafted = " ".join(map(str, part.draft_token_ids))
                assert (
                    f"drafted {drafted}: {part.num_accepted_tokens} accepted, "
                    f"{part.num_rejected_tokens} rejected, sampled "
                    + " ".join(map(str, part.new_token_ids))
                ) in text
    assert "one decode token and 4 drafts, drafted" in text


def test_drafts_survive_the_data_and_impossible_ones_are_refused() -> None:
    """A drafter's folder is written as text."""
    _, trace = played("itself")
    data = loads(dumps(to_data(trace)).encode())
    assert data["config"]["speculative_config"]["model"] == str(DEFAULT_MODEL)
    again = from_data(data)
    assert again.steps == trace.steps
    part = next(p for s in data["steps"] for p in s["scheduled"] if p["draft_token_ids"])
    part["num_accepted_tokens"] = 9
    with pytest.raises(TraceDataError, match="num_accepted_tokens must be 0 to the drafts"):
        from_data(data)


def test_the_page_is_written(tmp_path: Path) -> None:
    """With the drafts in its data."""
    from mini_vllm.trace import write_trace

    _, trace = play(NGRAM, max_tokens=8)
    write_trace(trace, tmp_path / "drafts.html")
    assert "draft token accepted" in (tmp_path / "drafts.html").read_text(encoding="utf-8")

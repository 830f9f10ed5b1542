"""What phase 08's pages say in prose of Eve's card and of the runs, held against what computes it."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm import EngineConfig
from mini_vllm.config.speculative import SpeculativeConfig

PHASE = ROOT / "phase-08-speculative-decoding"
CHECKPOINTS = ROOT / "mini_vllm" / "checkpoints"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")


@pytest.fixture(scope="module")
def drafts() -> ModuleType:
    """The bill on paper."""
    return load_module(PHASE / "drafts.py", "phase_08_drafts")


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    """The runs of the pages."""
    return load_module(PHASE / "runs.py", "phase_08_runs")


def test_tokens_per_second_at_night_and_at_noon(drafts: ModuleType) -> None:
    """The story: more for one person, less for 128."""
    head = drafts.WITH_HEAD
    alone, noon = (round(1e3 * head.tokens / head.step_ms(people)) for people in (1, 128))
    plain = round(1e3 / drafts.pass_ms(1))
    assert f"Now she gets {alone} tokens per second instead of {plain}." in GUIDE
    assert f"each gets {noon} tokens per second, where there were {plain} before" in GUIDE
    assert round(1e3 / drafts.pass_ms(128)) == plain


def test_where_the_tokens_per_step_come_from(drafts: ModuleType) -> None:
    """The sum of the rates, and the crowd for whom a single draft token still pays."""
    rates = " + ".join(f"{rate:.3f}" for rate in drafts.HEAD_RATES)
    assert f"1 + {rates} = {drafts.WITH_HEAD.tokens:.2f}" in GUIDE
    one = drafts.serial(drafts.HEAD_RATES[:1])
    assert f"would pay up to {one.breaks_even() - 1} people, not for 128" in GUIDE
    two, three = drafts.serial(drafts.HEAD_RATES[:2]), drafts.WITH_HEAD
    assert f"{two.gain(64):.2f} times as fast; with three {three.gain(64):.2f}" in GUIDE
    assert f"with three {three.gain(128):.2f} times as fast, with one {one.gain(128):.2f}" in GUIDE


def test_how_many_rows_are_free(drafts: ModuleType) -> None:
    """153 rows, which are 38 people with three drafts each."""
    assert drafts.pass_ms(153) == drafts.pass_ms(1) < drafts.pass_ms(154)
    assert 153 // 4 == 38
    assert f"{drafts.pass_ms(1):.1f} {1e3 * 2 * drafts.PARAMS / drafts.FLOPS:.2f}" == "7.9 0.05"
    assert "Up to 153 rows" in GUIDE
    assert "up to 38 people" in GUIDE
    assert f"goes below 1 at {drafts.WITH_HEAD.breaks_even()}" in GUIDE


def test_what_drafting_takes(drafts: ModuleType) -> None:
    """1.6 GB per guess, and three of them in a step."""
    head = drafts.WITH_HEAD
    assert f"{2 * drafts.HEAD / 1e9:.1f}" == "1.6"
    shares = f"{3 * drafts.pass_ms(1, drafts.HEAD):.1f} of the {head.step_ms(1):.1f} ms"
    assert shares in GUIDE
    assert f"{drafts.pass_ms(256):.1f}" == "13.2"
    gains = [f"{100 * (head.gain(people) - 1):.0f}" for people in (64, 1)]
    assert f"by {gains[0]} % instead of {gains[1]}" in GUIDE
    assert f"It yields {head.tokens:.2f} tokens per person" in GUIDE
    poor = drafts.WITH_POOR_HEAD
    assert f"only {poor.tokens:.2f}" in GUIDE
    assert f"{(1 - 0.2**4) / (1 - 0.2):.2f}" == f"{poor.tokens:.2f}"
    assert poor.gain(1) < 1


def test_a_mixture_takes_two_and_a_half_times_as_long(drafts: ModuleType) -> None:
    """One person's step with three drafts, on Ilse's card."""
    assert f"{drafts.mixtral_ms(4) / drafts.mixtral_ms(1):.1f}" == "2.5"


def test_both_rules_leave_the_distribution_alone(drafts: ModuleType) -> None:
    """On random p and q, and for every draft."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
        accepted, rest = drafts.ratio_rule(p, q)
        assert np.minimum(p, q) + (1 - accepted) * rest == pytest.approx(p)
        for draft in range(6):
            accepted, rest = drafts.certain_rule(p, draft)
            assert accepted * np.eye(6)[draft] + (1 - accepted) * rest == pytest.approx(p)


def test_the_steps_that_the_guide_names(runs: ModuleType) -> None:
    """Step 149, and how often n-gram lookup drafts at all."""
    ngram = runs.ngram()
    assert len(ngram.steps[148].drafts) == 3
    assert ngram.steps[148].computed == 187
    assert f"with drafts in {ngram.drafts} of {len(ngram.steps)} steps" in GUIDE
    assert f"{ngram.mean_acceptance_length:.2f}" == "1.46"
    assert f"{len(ngram.token_ids) / len(ngram.steps):.2f}" == "1.16"


def test_the_heads_rates_are_those_that_vllm_counted(drafts: ModuleType) -> None:
    """And what the mini-build says of its size and its training."""
    build = (PHASE / "02-mini-build.md").read_text("utf-8")
    log = json.loads((CHECKPOINTS / "tiny-llama-eagle" / "training_log.json").read_text("utf-8"))
    assert f"{log['parameters']:,} weights and learned from {log['rows']:,} texts" in build
    assert log["processor_seconds"] < 180
    small = json.loads((CHECKPOINTS / "tiny-llama-draft" / "training_log.json").read_text("utf-8"))
    assert f"one layer with {small['parameters']:,} weights" in build
    assert small["rows"] == log["rows"]
    assert drafts.ACCEPTANCE["methods"]["eagle"]["equal_texts"] == drafts.ACCEPTANCE["prompts"]
    assert drafts.HEAD_RATES[0] > 0.7


def test_a_draft_model_takes_a_slot_per_request_off_the_budget() -> None:
    """2,048 - 256 = 1,792."""
    spec = SpeculativeConfig(method="draft_model", model="tiny", num_speculative_tokens=3)
    config = EngineConfig(max_num_batched_tokens=2048, max_num_seqs=256, speculative_config=spec)
    assert config.max_num_scheduled_tokens == 1792
    assert "2,048 tokens and 256 requests leave 1,792" in GUIDE


def test_what_the_deep_dive_breaks() -> None:
    """Each broken part does what its section says."""
    sys.path.insert(0, str(PHASE))
    try:
        broken = load_module(PHASE / "broken_spec.py", "phase_08_broken")
    finally:
        sys.path.remove(str(PHASE))
    assert broken.drawn() == [0.5, 0.3, 0.2]
    assert broken.not_struck_out()[1] == pytest.approx(0.3 + 0.7 * 0.3, abs=0.01)
    assert broken.first_difference(broken.runs.head().token_ids) is None

"""Drafts in the simulator: what is accepted and counted, what rows and passes cost, the flags."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.entrypoints.cli import main
from mini_vllm.sim import (
    LinearCost,
    ServingMetrics,
    SimRequest,
    Simulator,
    Speculation,
    StepCost,
    StepWork,
    load_cost,
    mini_parts,
)
from mini_vllm.sim.cost import DERIVED, MoeRooflineCost
from mini_vllm.sim.speculation import unconditional_to_conditional_rates

SECOND = LinearCost("test", "made up", (0,) * 7, (1.0, 0, 0, 0, 0, 0, 0))
"""A second a step, whatever is in it: a run's time is its steps."""


def spec_config(rates: list[float], method: str = "ngram") -> dict[str, Any]:
    return {
        "method": method, "num_speculative_tokens": len(rates),
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates,
    } | ({} if method == "ngram" else {"model": "any"})  # fmt: skip


def simulate(
    requests: int,
    max_tokens: int,
    cost: StepCost = SECOND,
    speculative_config: dict[str, Any] | None = None,
    drafter: StepCost | None = None,
    async_scheduling: bool = False,
    make: type[Speculation] = Speculation,
    prompt: int = 16,
) -> tuple[dict[str, Any], Simulator]:
    """So many equal requests at once; nothing may be left in the KV cache."""
    config = EngineConfig(
        num_gpu_blocks=20_000, max_model_len=4096, max_num_batched_tokens=100_000,
        async_scheduling=async_scheduling, speculative_config=speculative_config,
    )  # fmt: skip
    spec = config.speculation
    kind = AsyncScheduler if async_scheduling else Scheduler
    parts = mini_parts(config, kind, async_scheduling=async_scheduling)
    metrics = ServingMetrics()
    simulator = Simulator(parts, cost, metrics, None, 0, spec and make(spec, drafter))
    simulator.run(SimRequest(str(i), 0.0, [i] * prompt, max_tokens) for i in range(requests))
    manager = simulator.parts.scheduler.kv_cache_manager
    manager.check_invariants()
    assert manager.usage == 0, "blocks were not given back"
    result = metrics.result(simulator.num_preemptions)
    assert result["total_output_tokens"] == requests * max_tokens, "no token too many, none lost"
    return result, simulator


def test_conditional_rates_are_vllms() -> None:
    """Each rate over the one before it; nothing comes after a rate of 0."""
    assert unconditional_to_conditional_rates([0.8, 0.4, 0.4, 0.1]) == [0.8, 0.5, 1.0, 0.25]
    assert unconditional_to_conditional_rates([0.5, 0.0, 0.0]) == [0.5, 0.0, 0.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_accepted_saves_steps_and_none_accepted_saves_none(asynchronous: bool) -> None:
    """The prompt's step gives one token, each later one four, or one. A plan that is made ahead counts on no
    draft: where all are accepted, one step more is planned than the lengths need."""
    for rates, steps in (([1.0] * 3, 1 + 10), ([0.0] * 3, 1 + 40)):
        config = spec_config(rates, "eagle")
        found, simulator = simulate(4, 41, speculative_config=config, async_scheduling=asynchronous)
        more = int(asynchronous and rates[0] > 0)
        assert found["num_steps"] - found["empty_steps"] == steps + more, rates
        assert simulator.speculation is not None
        stats = simulator.speculation.stats
        assert stats.num_drafts == 4 * (steps - 1)
        assert stats.num_accepted_tokens == (3 * stats.num_drafts if rates[0] else 0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_counted_is_what_the_scheduler_counts(asynchronous: bool) -> None:
    """The scheduler has counters of its own; and the rates by position come out as given."""
    rates = [0.8, 0.6, 0.3]
    config = spec_config(rates, "eagle")
    _, simulator = simulate(40, 200, speculative_config=config, async_scheduling=asynchronous)
    assert simulator.speculation is not None
    stats = simulator.speculation.stats
    assert simulator.parts.scheduler.make_stats().spec_decoding_stats == stats
    found = simulator.speculation.result()
    assert found["spec_decode_per_position_acceptance_rates"] == pytest.approx(rates, abs=0.025)
    assert found["spec_decode_acceptance_length"] == pytest.approx(1 + sum(rates), abs=0.08)


def test_drafted_nothing_it_costs_nothing() -> None:
    """A k of 0 in each step: the steps and times are those of a run without speculation."""

    class Never(Speculation):
        def num_draft_tokens(self, scheduler: Any) -> int:
            return 0

    drafter = load_cost("a100-eagle-llama-3-8b")
    cost = load_cost("a100-llama-3-8b")
    plain, _ = simulate(5, 30, cost)
    found, simulator = simulate(5, 30, cost, spec_config([0.9] * 4, "eagle"), drafter, make=Never)
    del plain["max_kv_cache_usage_perc"], found["max_kv_cache_usage_perc"]  # the drafter's slots
    assert found == plain
    assert simulator.speculation is not None
    assert simulator.speculation.stats.num_drafts == 0


def test_a_drafters_passes_are_added_to_the_step() -> None:
    """One over the step's rows, and one over a row a request for each draft more."""
    token = LinearCost("test", "made up", (0,) * 7, (0.5, 0, 0, 0, 0.25, 0, 0))
    work = StepWork(1, 1, 2, 1, 12, 40, 60)
    for method, first in (("eagle", 12), ("draft_model", 14)):
        spec = Speculation(SpeculativeConfig.from_dict(spec_config([0.5] * 3, method)), token)
        assert spec.drafting(work, 3) == pytest.approx(0.5 + 0.25 * first + 2 * (0.5 + 0.25 * 2))
        assert spec.drafting(work, 1) == pytest.approx(0.5 + 0.25 * first)
        assert spec.drafting(work, 0) == spec.drafting(work._replace(num_tokens=0), 3) == 0


def speedup(cost: str, batch: int, rates: list[float], drafter: str) -> float:
    method = "eagle" if drafter else "ngram"
    draft_cost = load_cost(drafter) if drafter else None
    before, _ = simulate(batch, 64, load_cost(cost), prompt=256)
    after, _ = simulate(
        batch, 64, load_cost(cost), spec_config(rates, method), draft_cost, prompt=256
    )
    return float(before["mean_tpot_ms"] / after["mean_tpot_ms"])


def test_one_request_gains_and_a_crowd_loses() -> None:
    """The same drafts with the same acceptance; what changes is how many rows share the weights."""
    rates = [0.4, 0.15, 0.06, 0.02]
    assert speedup("a100-llama-3-8b", 1, rates, "") > 1.4
    assert speedup("a100-llama-3-8b", 64, rates, "") < 0.95
    assert 1 < speedup("a100-llama-3-8b", 1, rates, "a100-eagle-llama-3-8b") < 1.2


def test_a_mixture_reads_more_experts_for_more_rows() -> None:
    """Phase 07's figures: a token uses 2 of 8 experts, 4 tokens 5.47; so one request gains less."""
    mixture = DERIVED["h200-mixtral-8x7b"]
    assert isinstance(mixture, MoeRooflineCost)
    assert mixture.experts_read(1) == pytest.approx(2)
    assert mixture.experts_read(4) == pytest.approx(5.47, abs=0.01)
    total = mixture.params + 8 * mixture.params_per_expert + 32_000 * 4096
    assert total == pytest.approx(46.7e9, rel=1e-3), "its name says 8x7B, its card 46.7 billion"
    rates = [0.7, 0.5, 0.35]
    assert speedup("h200-mixtral-8x7b", 1, rates, "") < 1.2
    assert speedup("a100-llama-3-8b", 1, rates, "") > 2


def test_an_eagle_head_is_a_tenth_of_its_model() -> None:
    """A layer, the matrix that joins its two inputs, and the last matrix."""
    head, model = DERIVED["a100-eagle-llama-3-8b"], DERIVED["a100-llama-3-8b"]
    assert head.params == 218_103_808 + 33_554_432 + 525_336_576
    assert 0.09 < head.params / model.params < 0.1
    assert head.kv_bytes_per_token * 32 == model.kv_bytes_per_token


# ---- the command ---------------------------------------------------------------------------------

SMALL = ("simulate", "--num-prompts", "4", "--input-len", "40", "--output-len", "60")


def run(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main([*SMALL, *argv]) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def test_the_table_has_vllms_words_for_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    config = json.dumps(spec_config([1.0, 1.0, 0.0]))
    out = run(capsys, "--speculative-config", config)
    for title in (
        "---------------Speculative Decoding---------------",
        "Acceptance rate (%):                     66.67",
        "Acceptance length:                       3.00",
        "  Position 2:                            0.00",
    ):
        assert title in out, title
    data = json.loads(run(capsys, "-sc", config, "--json", "-"))
    assert data["spec_decode_per_position_acceptance_rates"] == [1, 1, 0]
    assert data["spec_decode_num_drafts"] == 4 * 20
    assert "spec_decode_num_drafts" not in json.loads(run(capsys, "--json", "-"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("-sc", '{"method": "ngram", "num_speculative_tokens": 3}'), "no text to compare"),
        (("-sc", json.dumps(spec_config([0.5], "eagle"))), "method 'eagle' needs --draft-cost"),
        (
            ("-sc", json.dumps(spec_config([0.5])), "--draft-cost", "a100-llama-3.2-1b"),
            "leave --draft-cost",
        ),
        (("--draft-cost", "a100-llama-3.2-1b"), "needs a --speculative-config"),
        (("-sc", json.dumps(spec_config([0.5])), "--async-scheduling"), "tokens that are still"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str
) -> None:
    err = run(capsys, *argv, status=2)
    assert words in err, err
    assert len(err.splitlines()) == 1, err


@pytest.mark.parametrize("value", ["{", "[1]", "3"])
def test_a_config_that_is_no_object_is_refused(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    with pytest.raises(SystemExit):
        main([*SMALL, "--speculative-config", value])
    assert "--speculative-config" in capsys.readouterr().err

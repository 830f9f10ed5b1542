"""The benchmarks of the simulator run, and measure what they say."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import pytest

from benchmarks import sim_million, simulator
from benchmarks.sim_real import NUM_IDS, mini_engine, real_ids
from benchmarks.steady import RECENT, SteadyClock
from mini_vllm.sim import LinearCost, SimRequest, StepWork, TimedStep
from mini_vllm.sim.cost import PRESETS_FILE, presets

RESULTS = Path(simulator.__file__).parent / "results"


def test_short_requests_all_end_and_give_back_every_block() -> None:
    row = sim_million.run(400)
    assert row["finished"] == 400
    assert row["blocks missing"] == 0


def test_waiting_requests_cost_a_step_nothing() -> None:
    few, many = sim_million.waiting_cost(100, 80), sim_million.waiting_cost(10_000, 80)
    assert many < 3 * few, f"{few:.0f} us a step with 100 waiting, {many:.0f} with 10,000"


def test_real_prompts_share_what_simulated_ones_share() -> None:
    one, other = real_ids([7] * 20 + [100] * 20), real_ids([7] * 20 + [101] * 20)
    assert one[:20] == other[:20]
    assert one[20:] != other[20:]
    assert len(set(real_ids([5] * 2000))) == NUM_IDS, "every ordinary id turns up"


def test_a_real_engine_is_fed_and_timed() -> None:
    engine = mini_engine(SteadyClock())
    requests = [SimRequest(str(i), 0.02 * i, [100 + i] * 20, 3) for i in range(4)]
    found = engine.run(requests)
    assert (len(found.ttft), len(found.itl), found.output_tokens) == (4, 8, 12)
    assert len(engine.adds) == 4
    assert sum(step.work.num_tokens for step in engine.steps) == 4 * (20 + 2)
    assert all(step.device > 0 and step.host > 0 for step in engine.steps)
    assert found.duration >= 0.06, "the last came then"
    assert set(simulator.COMPARED) <= set(found.figures())


def test_the_steady_clock_does_not_count_its_own_pieces() -> None:
    clock = SteadyClock()
    wall, before = time.perf_counter(), clock()
    for _ in range(100):
        clock.tick()
    shown, passed = clock() - before, time.perf_counter() - wall
    assert 0 < shown < passed / 4
    assert len(clock.rates) == 100
    assert min(clock.rates) > 0


def test_the_steady_clock_goes_slower_when_the_machine_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SteadyClock()
    piece = clock._piece
    monkeypatch.setattr(clock, "_piece", lambda: sum(piece() for _ in range(10)))
    for _ in range(RECENT):
        clock.tick()
    assert clock.rates[-1] < 0.5
    before = clock()
    time.sleep(0.05)
    assert clock() - before < 0.05


def test_no_workload_of_the_calibration_is_compared() -> None:
    cost = LinearCost("c", "test", (1e-4, *[0.0] * 6), (4e-3, 0, 0, 0, 2e-5, 0, 0))
    timed = simulator.calibration(60, 10.0)
    compared = simulator.compared(60, cost)
    assert len(compared) == 3

    def shape(requests: list[SimRequest]) -> list[tuple[int, int]]:
        return [(len(q.prompt), q.max_tokens) for q in requests]

    assert not [n for n, w in timed.items() if shape(w) in map(shape, compared.values())]
    assert compared["batch, at once"][-1].arrival == 0
    assert compared["chat, Poisson"][-1].arrival > 0


def test_the_fit_is_explained_by_kind_of_step() -> None:
    cost = LinearCost("c", "test", (0.0,) * 7, (1.0, *[0.0] * 6))
    works = [
        StepWork(1, 0, 1, 0, 1, 9, 9),
        StepWork(1, 0, 20, 0, 20, 400, 400),
        StepWork(1, 1, 1, 1, 90, 90, 9),
    ]
    rows = simulator.explain([TimedStep(work, 0.5, 0.0) for work in works], cost)
    assert [row["steps"] for row in rows] == [
        "decode, 1 to 8 requests", "decode, 9 to 64 requests", "prompts, up to 128 tokens",
    ]  # fmt: skip
    assert all(row["mean's error %"] == pytest.approx(100) for row in rows)


def test_a_preset_takes_the_place_of_its_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "PRESETS_FILE", tmp_path / "presets.json")
    for step in (1.0, 2.0):
        simulator.save_preset(LinearCost("c", "test", (0.0,) * 7, (step, *[0.0] * 6)))
    (saved,) = json.loads((tmp_path / "presets.json").read_text())
    assert LinearCost.from_json(saved).device_s[0] == 2.0


@pytest.mark.skipif(not PRESETS_FILE.is_file(), reason="no quiet run has been made yet")
def test_a_calibrated_preset_says_when_and_on_what() -> None:
    for name in {row["name"] for row in json.loads(PRESETS_FILE.read_text("utf-8"))}:
        assert re.search(
            r"calibrated: .* on .*, 20\d\d-\d\d-\d\d, \d+ steps", presets()[name].source
        )


@pytest.mark.skipif(
    not (RESULTS / "simulator-vllm.json").is_file(), reason="no quiet run has been made yet"
)
def test_the_committed_errors_are_what_the_page_says() -> None:
    """TTFT p50 and p99 and the throughput are within 10 % of real vLLM's, on three workloads."""
    data = json.loads((RESULTS / "simulator-vllm.json").read_text("utf-8"))
    promised = {"p50_ttft_ms", "p99_ttft_ms", "output_throughput"}
    rows = [row for row in data["rows"] if row["figure"] in promised]
    assert len(rows) == 9
    for row in rows:
        assert row["(a) ours, clock"] == row["(b) vLLM's, clock"]
        assert math.fabs(row["error %"]) <= 10, row

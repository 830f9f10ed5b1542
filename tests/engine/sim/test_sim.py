"""The simulator: its clock, its workloads, its figures, and its cost model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.sim import (
    Lengths,
    LinearCost,
    ServingMetrics,
    SimRequest,
    Simulator,
    StepWork,
    TimedStep,
    arrival_times,
    calibrate,
    dataset_requests,
    load_cost,
    mini_parts,
    random_requests,
    read_dataset,
)
from mini_vllm.sim.cost import presets
from mini_vllm.sim.metrics import Timeline, parse_goodput
from mini_vllm.sim.sketch import RELATIVE_ERROR, Sketch

AZURE = next(Path(__file__).parents[3].glob("phase-02*/labs/lab-02*/azure_conversations.csv"))


def linear(
    step: float = 1.0, host: float = 0.0, token: float = 0.0, add: float = 0.0
) -> LinearCost:
    return LinearCost("test", "made up", (host, *[0] * 6), (step, 0, 0, 0, token, 0, 0), add)


def simulate(
    requests: Iterable[SimRequest], cost: Any, **settings: Any
) -> tuple[dict[str, Any], Simulator]:
    """The figures, and the simulator; nothing may be left in the KV cache."""
    config = EngineConfig(**({"num_gpu_blocks": 200, "max_model_len": 512} | settings))
    metrics = ServingMetrics()
    simulator = Simulator(mini_parts(config), cost, metrics)
    simulator.run(requests)
    manager = simulator.parts.scheduler.kv_cache_manager
    manager.check_invariants()
    assert manager.usage == 0, "blocks were not given back"
    return metrics.result(simulator.num_preemptions), simulator


def request(name: str, arrival: float, prompt: int, max_tokens: int) -> SimRequest:
    return SimRequest(name, arrival, [ord(name)] * prompt, max_tokens)


# -- the clock ------------------------------------------------------------------------------------


def test_one_request_takes_a_step_a_token() -> None:
    """Two seconds a step and a tenth a token: 2.8 for the prompt of 8, then 2.1 a token."""
    found, _ = simulate([request("a", 5.0, 8, 3)], linear(step=2.0, token=0.1))
    assert found["mean_ttft_ms"] == pytest.approx(2800)
    assert found["mean_tpot_ms"] == found["mean_itl_ms"] == pytest.approx(2100)
    assert found["mean_e2el_ms"] == pytest.approx(2800 + 2 * 2100)
    assert found["duration"] == pytest.approx(5 + 7)
    assert (found["completed"], found["total_output_tokens"], found["num_steps"]) == (1, 3, 3)


def test_who_comes_during_a_step_waits_for_its_end() -> None:
    found, simulator = simulate([request("a", 0, 4, 4), request("b", 0.25, 4, 1)], linear())
    assert found["num_steps"] == 4
    assert found["mean_ttft_ms"] == pytest.approx(1000 * (1 + 1.75) / 2)
    assert found["max_running"] == 2
    assert simulator.now == 4


def test_adding_a_request_takes_the_hosts_time() -> None:
    found, _ = simulate([request(name, 0, 4, 1) for name in "abc"], linear(add=0.5))
    assert found["mean_ttft_ms"] == pytest.approx(2500), "three added, then one step"


def test_host_and_device_add_up_in_turn() -> None:
    found, _ = simulate([request("a", 0, 4, 10)], linear(step=1.0, host=0.25))
    assert found["duration"] == pytest.approx(10 * 1.25)
    assert found["device_busy_share"] == pytest.approx(0.8)


def test_with_two_plans_in_flight_the_host_is_hidden() -> None:
    """The device never waits but for the first plan; a length stop leaves two empty plans."""
    module = pytest.importorskip("mini_vllm.core.sched.async_scheduler")
    config = EngineConfig(num_gpu_blocks=100, max_model_len=128)
    parts = mini_parts(config, module.AsyncScheduler, async_scheduling=True)
    metrics = ServingMetrics()
    Simulator(parts, linear(step=1.0, host=0.25), metrics).run([request("a", 0, 8, 10)])
    found = metrics.result(0)
    assert found["duration"] == pytest.approx(0.25 + 10)
    assert found["mean_itl_ms"] == pytest.approx(1000)
    assert (found["num_steps"], found["empty_steps"]) == (12, 2)


def test_a_shared_prefix_is_computed_once() -> None:
    arrivals = itertools.repeat(0.0, 4)
    requests = random_requests(arrivals, Lengths("constant", 16), Lengths("constant", 2), 32, 1)
    found, _ = simulate(requests, linear())
    assert found["cached_prompt_tokens"] == 3 * 32
    assert found["total_input_tokens"] == 4 * 48
    # Each computes its own 16, the first the prefix too, and of the output all but the last token.
    assert found["computed_tokens"] == 32 + 4 * 16 + 4 * 1


def test_short_of_blocks_somebody_is_preempted_and_all_end() -> None:
    requests = [request(name, 0, 16, 60) for name in "abcdef"]
    found, _ = simulate(requests, linear(), num_gpu_blocks=13)
    assert found["num_preemptions"] > 0
    assert found["completed"] == 6
    assert found["total_output_tokens"] == 360
    assert found["max_kv_cache_usage_perc"] == 1.0


def test_what_the_engine_refuses_has_failed_and_the_rest_runs() -> None:
    requests = [request("a", 0, 600, 2), request("b", 0, 8, 2), request("c", 0, 300, 200)]
    found, simulator = simulate(requests, linear(), num_gpu_blocks=21)
    assert (found["completed"], found["failed"]) == (1, 2)
    assert "max_model_len, 512" in simulator.metrics.first_failure


def test_requests_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'b' arrives at 0\.5, before"):
        simulate([request("a", 1.0, 4, 1), request("b", 0.5, 4, 1)], linear())


def test_nothing_is_kept_of_what_has_ended() -> None:
    """Requests are taken when the clock gets there, and the finished are dropped."""
    alive: list[int] = []

    def coming() -> Iterable[SimRequest]:
        for i in range(400):
            alive.append(len(simulator._live))
            yield SimRequest(str(i), float(2 * i), [i] * 4, 2)

    config = EngineConfig(num_gpu_blocks=20, max_model_len=64)
    simulator = Simulator(mini_parts(config), linear(), ServingMetrics())
    simulator.run(coming())
    assert max(alive) <= 1
    assert not simulator._live
    assert len(simulator.metrics._seconds._counts) <= 2
    assert len(simulator.metrics.timeline.rows) < Timeline.SLOTS


def test_the_same_seed_gives_the_same_run() -> None:
    def figures(seed: int) -> dict[str, Any]:
        arrivals = arrival_times(20, 2.0, 0.5, seed)
        lengths = Lengths.parse("uniform:1:40"), Lengths.parse("lognormal:8:0.5:30")
        return simulate(random_requests(arrivals, *lengths, seed=seed), linear(0.05))[0]

    assert figures(3) == figures(3)
    assert figures(3) != figures(4)


# -- the figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["lognormal", "exponential", "uniform"])
def test_a_sketch_is_within_its_error(draw: str) -> None:
    values = getattr(np.random.default_rng(0), draw)(size=3000)
    sketch = Sketch()
    for value in values.tolist():
        sketch.add(value)
    for p in (0, 1, 25, 50, 90, 99, 99.9, 100):
        expected = float(np.percentile(values, p))
        assert sketch.percentile(p) == pytest.approx(expected, rel=1.01 * RELATIVE_ERROR), p
    assert sketch.mean == pytest.approx(values.mean())
    assert sketch.std == pytest.approx(values.std())


def test_figures_are_what_vllm_computes_of_the_same_times() -> None:
    """By hand, as `calculate_metrics` does: `b` came at 0.5 and got tokens at 2 and 3."""
    config = EngineConfig(num_gpu_blocks=200, max_model_len=512)
    metrics = ServingMetrics({"ttft": 1200, "e2el": 3000}, (50, 99))
    simulator = Simulator(mini_parts(config), linear(), metrics)
    simulator.run([request("a", 0, 4, 4), request("b", 0.5, 4, 2)])
    found = metrics.result(0)
    assert found["mean_ttft_ms"] == pytest.approx(np.mean([1000, 1500]))
    assert found["mean_itl_ms"] == pytest.approx(1000)
    assert found["p50_e2el_ms"] == pytest.approx(np.percentile([4000, 2500], 50), rel=0.01)
    assert found["request_throughput"] == 2 / 4
    assert found["output_throughput"] == 6 / 4
    assert found["request_goodput"] == 0, "a takes 4 s, b's first token comes after 1.5 s"
    assert found["max_output_tokens_per_s"] == 2
    assert found["max_concurrent_requests"] == 2


def test_goodput_counts_who_keeps_every_limit() -> None:
    config = EngineConfig(num_gpu_blocks=200, max_model_len=512)
    metrics = ServingMetrics(parse_goodput(["ttft:1000", "e2el:3000"]))
    Simulator(mini_parts(config), linear(), metrics).run(
        [request("a", 0, 4, 3), request("b", 0, 4, 4)]
    )
    assert metrics.result(0)["request_goodput"] == 1 / 4


@pytest.mark.parametrize("pair", ["itl:3", "ttft", "ttft:-1", "ttft:nan", "ttft:soon"])
def test_a_goodput_that_means_nothing_is_refused(pair: str) -> None:
    with pytest.raises(ValueError, match="goodput is NAME:MILLISECONDS"):
        parse_goodput([pair])


# -- workloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0, math.inf])
def test_arrivals_end_where_the_rate_says(burstiness: float) -> None:
    times = list(arrival_times(5000, 20.0, burstiness, seed=1))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5000 / 20.0)
    gaps = np.diff([0.0, *times])
    wanted = 0 if math.isinf(burstiness) else burstiness**-0.5
    assert gaps.std() / gaps.mean() == pytest.approx(wanted, abs=0.1), "a gamma's spread"


def test_an_infinite_rate_sends_all_at_the_start() -> None:
    assert list(arrival_times(3, math.inf)) == [0, 0, 0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, -2)])
def test_a_rate_must_be_above_0(rate: float, burstiness: float) -> None:
    with pytest.raises(ValueError, match=r"must be (above 0|at least 1e-06)"):
        arrival_times(1, rate, burstiness)


@pytest.mark.parametrize(
    ("text", "low", "high", "median"),
    [("7", 7, 7, 7), ("uniform:5:9", 5, 9, 7), ("lognormal:50:1:400", 1, 400, 50)],
)
def test_lengths(text: str, low: int, high: int, median: float) -> None:
    drawn = Lengths.parse(text).draw(np.random.default_rng(0), 4000)
    assert low <= min(drawn)
    assert max(drawn) <= high
    assert np.median(drawn) == pytest.approx(median, rel=0.1)


def test_the_azure_conversations_are_read() -> None:
    rows = read_dataset(AZURE)
    assert (len(rows), rows[0].prompt_len, rows[0].output_len) == (256, 374, 44)
    times = itertools.repeat(0.0, 300)
    lengths = [(len(q.prompt), q.max_tokens) for q in dataset_requests(rows, 300, times)]
    assert sorted(lengths[:256]) == sorted((row.prompt_len, row.output_len) for row in rows)


def test_vllms_custom_dataset_keeps_what_prompts_share(tmp_path: Path) -> None:
    file = tmp_path / "custom.jsonl"
    lines = [
        '{"prompt": "abcd1", "output_tokens": 3}',
        "",
        '{"prompt": "abcd2", "output_tokens": 4}',
    ]
    file.write_text("\n".join(lines))
    rows = read_dataset(file, lambda text: [ord(c) for c in text])
    found, _ = simulate(
        dataset_requests(rows, 2, arrival_times(2, math.inf)), linear(), block_size=4
    )
    assert found["cached_prompt_tokens"] == 4


def test_burst_gpt_brings_its_times(tmp_path: Path) -> None:
    file = tmp_path / "burst.csv"
    file.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,1087,230,1317,Conversation log\n"
        "50,GPT-4,9,0,9,Conversation log\n"
        "118.5,GPT-4,417,276,693,Conversation log\n"
    )
    found = list(dataset_requests(read_dataset(file), 2))
    assert [(q.arrival, len(q.prompt), q.max_tokens) for q in found] == [
        (0, 1087, 230),
        (73.5, 417, 276),
    ]


# -- the cost of a step ---------------------------------------------------------------------------


def test_calibration_finds_the_cost_that_made_the_times() -> None:
    """Noise of 10 %, and a term that costs nothing: each prediction is within 2 %."""
    rng = np.random.default_rng(0)
    true = LinearCost(
        "true",
        "made up",
        (2e-4, 0, 1e-5, 0, 0, 0, 0),
        (4e-3, 1e-3, 2e-5, 1e-4, 3e-5, 0, 2e-8),
        1e-4,
    )
    steps = []
    for _ in range(600):
        reqs = int(rng.integers(1, 64))
        new = int(rng.integers(0, 3))
        tokens, kv = reqs + new * int(rng.integers(8, 500)), reqs * int(rng.integers(8, 900))
        work = StepWork(1, int(new > 0), reqs, new, tokens, kv, kv + (tokens - reqs) * 200)
        noise = rng.normal(1, 0.1, 2)
        steps.append(TimedStep(work, true.host(work) * noise[0], true.device(work) * noise[1]))
    found = calibrate(steps, [1e-4, 1e-4], "found", "test")
    for step in steps:
        assert found.device(step.work) == pytest.approx(true.device(step.work), rel=0.05)
        assert found.host(step.work) == pytest.approx(true.host(step.work), rel=0.05)
    assert min(found.host_s + found.device_s) >= 0
    assert found.add_request_s == pytest.approx(1e-4)
    # 10 % on the device, where nearly all of the time is: the normal distribution's fiftieths.
    assert len(found.scatter) == 50
    assert sorted(found.scatter) == list(found.scatter)
    assert np.mean(found.scatter) == pytest.approx(1, abs=0.01)
    assert np.std(found.scatter) == pytest.approx(0.1, rel=0.15)
    assert (found.scatter[0], found.scatter[-1]) == pytest.approx((0.76, 1.24), abs=0.05)


def test_scatter_stretches_steps_and_keeps_their_sum() -> None:
    """The same requests, 2 s a step: with the scatter a step takes 1, 2 or 3, by the seed's draws."""
    cost = replace(linear(1.5, 0.5), scatter=(0.5, 1.0, 1.5))
    config = EngineConfig(num_gpu_blocks=200, max_model_len=512)
    ends = {}
    for name, one, seed in (("plain", linear(1.5, 0.5), 0), ("one", cost, 1), ("two", cost, 2)):
        metrics = ServingMetrics()
        times: list[float] = []
        simulator = Simulator(
            mini_parts(config), one, metrics, lambda _, now, times=times: times.append(now), seed
        )
        simulator.run([request("a", 0, 8, 300)])
        ends[name] = simulator.now
        steps = {round(after - before, 6) for before, after in itertools.pairwise(times)}
        assert steps == ({2.0} if name == "plain" else {1.0, 2.0, 3.0})
    assert ends["plain"] == pytest.approx(600)
    assert ends["one"] != ends["two"]
    assert all(end == pytest.approx(600, rel=0.1) for end in ends.values()), ends


@pytest.mark.parametrize("scatter", [[0.0], [-1.0], ["1"], [True], 1.0, "12"])
def test_scatter_that_is_none_is_refused(scatter: Any) -> None:
    with pytest.raises(ValueError, match="scatter must be"):
        LinearCost.from_json(linear().to_json() | {"scatter": scatter})


def test_a_cost_survives_its_file(tmp_path: Path) -> None:
    import json

    cost = replace(linear(0.5, 0.25, 0.125, 0.0625), scatter=(0.9, 1.1))
    file = tmp_path / "cost.json"
    file.write_text(json.dumps(cost.to_json()))
    assert load_cost(str(file)) == cost


def test_every_preset_says_where_it_comes_from() -> None:
    step = StepWork(1, 1, 8, 1, 120, 4000, 9000)
    for name, cost in presets().items():
        assert cost.name == name
        assert cost.source
        assert 0 < cost.device(step) < 1
        more = step._replace(num_tokens=4000, attention_pairs=10**7)
        assert cost.device(more) > cost.device(step)


def test_a_roofline_has_two_slopes() -> None:
    """Phase 00's numbers: 16 GB of weights at 2,039 GB/s take 7.9 ms; a prompt of 2,000 takes longer."""
    cost = load_cost("a100-llama-3-8b")
    assert cost.device(StepWork(1, 0, 1, 0, 1, 1, 1)) == pytest.approx(7.877e-3, rel=1e-3)
    assert cost.device(StepWork(1, 1, 1, 1, 2000, 2000, 2001000)) == pytest.approx(0.1064, rel=1e-3)

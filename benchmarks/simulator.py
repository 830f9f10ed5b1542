"""The error budget of the simulator: where its figures part from a real engine's, and by how much.

    python -m benchmarks.simulator [--engine vllm|mini] [--requests N] [--repeat N] [--save]

Three legs run the same workloads:

    (a) our scheduler on the virtual clock
    (b) vLLM's own scheduler on the same clock; it decides as ours does, so its figures are equal
        (`python -m benchmarks.sim_vllm` compares them plan by plan on 500 drawn workloads)
    (c) the real engine on this CPU, fed in real time (`benchmarks/sim_real.py`)

so what is between (b) and (c) is the cost model. It is fitted to steps of other workloads than those
compared. All is timed on a clock that goes slower when the machine does, because on a shared machine
the same step may take half as long again a minute later. `--engine mini` holds our own engine in
leg (c): no vLLM needed, and leg (b) is left out.

`--save` writes results/simulator-ENGINE.json, and the fitted cost as a preset of `mini-vllm simulate`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.sim_real import CONFIG, MAX_MODEL_LEN, Engine, Times, mini_engine, vllm_engine
from benchmarks.sim_vllm import vllm_sim_parts
from benchmarks.steady import SteadyClock
from course.parity.decisions import engine_config
from mini_vllm.sim import (
    Lengths,
    LinearCost,
    ServingMetrics,
    SimParts,
    SimRequest,
    Simulator,
    TimedStep,
    arrival_times,
    calibrate,
    dataset_requests,
    mini_parts,
    random_requests,
    read_dataset,
)
from mini_vllm.sim.cost import PRESETS_FILE
from mini_vllm.sim.workload import Row

AZURE = next(
    Path(__file__).parents[1].glob("phase-02*/labs/lab-02-*/azure_conversations.csv"), Path()
)
COMPARED = ("p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms", "output_throughput")
SEEDS = 5
"""Of the steps' scatter; the requests are the same for all."""
LOAD = 0.6
"""The rate of the open workloads, as a share of what the engine could do with all there at once. Much
nearer to 1 a queue turns an error of 1 % in a step into one of 10 % in a wait."""


def calibration(n: int, rate: float) -> dict[str, list[SimRequest]]:
    """What is timed to fit the cost: decoding at many batch sizes, prompts of all sizes, and both, at once
    and coming in at shares of `rate`, in requests a second."""

    def draw(times: Iterator[float], lengths: str, seed: int, prefix: int = 0) -> list[SimRequest]:
        prompt, output = map(Lengths.parse, lengths.split())
        return list(random_requests(times, prompt, output, prefix, 8, seed))

    def at_once(count: int) -> Iterator[float]:
        return arrival_times(count, math.inf)

    found = {
        f"{size} at once": draw(at_once(size), "uniform:4:300 48", 100 + size)
        for size in (1, 2, 4, 8, 16, 32, 48, 64)
    }
    mixed = "uniform:8:500 uniform:4:100"
    found["long and alone"] = draw(at_once(4), "900 100", 201)
    found["prompts"] = draw(at_once(n // 4), "uniform:4:900 uniform:1:3", 202)
    found["mixed"] = draw(at_once(n // 4), mixed, 203)
    for share, seed in ((0.3, 204), (0.7, 205)):
        times = arrival_times(n // 2, share * rate, 0.5, seed)
        found[f"mixed, {share:.0%} of the rate"] = draw(times, mixed, seed)
    # Prompts that are found in part.
    times = arrival_times(n // 2, 0.7 * rate, 0.5, 206)
    found["shared beginnings"] = draw(times, "uniform:8:400 uniform:4:100", 206, prefix=128)
    return found


def compared(n: int, cost: LinearCost) -> dict[str, list[SimRequest]]:
    """The three workloads of the table; the rates of the first two follow from the cost."""
    rows = [
        Row(max(row.prompt_len // 3, 1), row.output_len // 3 + 1)
        for row in read_dataset(AZURE)
        if (row.prompt_len + row.output_len) // 3 < MAX_MODEL_LEN - 2
    ]

    def chat(rate: float) -> list[SimRequest]:
        return list(dataset_requests(rows, n, arrival_times(n, rate, 1.0, 1), 1))

    def documents(rate: float) -> list[SimRequest]:
        times = arrival_times(n, rate, 0.25, 2)
        lengths = Lengths.parse("uniform:16:160"), Lengths.parse("lognormal:32:0.6:128")
        return list(random_requests(times, *lengths, prefix_len=320, num_prefixes=4, seed=2))

    batch = random_requests(
        arrival_times(n, math.inf), Lengths.parse("lognormal:120:0.8:700"),
        Lengths.parse("lognormal:90:0.6:300"), seed=3,
    )  # fmt: skip
    found = {}
    for name, make in (("chat, Poisson", chat), ("documents, bursty", documents)):
        figures = simulate(mini_parts(engine_config(CONFIG)), make(math.inf), cost)
        found[name] = make(LOAD * figures["request_throughput"])
    return found | {"batch, at once": list(batch)}


def simulate(
    parts: SimParts, requests: Sequence[SimRequest], cost: LinearCost, seed: int = 0
) -> dict[str, Any]:
    """The figures of a run on the virtual clock."""
    metrics = ServingMetrics(percentiles=(50, 99))
    simulator = Simulator(parts, cost, metrics, seed=seed)
    simulator.run(requests)
    assert not metrics.failed, metrics.first_failure
    return metrics.result(simulator.num_preemptions)


def medians(
    make_parts: Callable[[], SimParts], requests: Sequence[SimRequest], cost: LinearCost
) -> dict[str, float]:
    """Each figure's median over as many runs as there are seeds, as leg (c)'s is one of its runs."""
    runs = [simulate(make_parts(), requests, cost, seed) for seed in range(SEEDS)]
    names = (*COMPARED, "num_preemptions")
    return {name: statistics.median(float(run[name]) for run in runs) for name in names}


def profile(engine: Engine, n: int, rate: float) -> None:
    """Time the steps and additions of the calibration's workloads, into `engine.steps` and `.adds`."""
    for requests in calibration(n, rate).values():
        engine.run(requests)


def kind_of(step: TimedStep) -> str:
    """By what a step is expected to be slow or fast."""
    work = step.work
    if work.prompt_steps:
        return f"prompts, {'up to 128' if work.num_tokens <= 128 else 'more'} tokens"
    return f"decode, {'1 to 8' if work.num_reqs <= 8 else '9 to 64'} requests"


def explain(steps: list[TimedStep], cost: LinearCost) -> list[dict[str, Any]]:
    """How well the cost fits the steps it was fitted to, by kind of step."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        predicted = cost.host(step.work) + cost.device(step.work)
        kinds.setdefault(kind_of(step), []).append((step.host + step.device, predicted))
    rows = []
    for kind, pairs in sorted(kinds.items()):
        real, model = np.array(pairs).T
        rows.append(
            {
                "steps": kind,
                "how many": len(real),
                "real ms": 1e3 * float(real.mean()),
                "model ms": 1e3 * float(model.mean()),
                "mean's error %": 100 * float(model.mean() / real.mean() - 1),
                "median error %": 100 * float(np.median(np.abs(model / real - 1))),
            }
        )
    return rows


def compare_legs(
    workload: str, ours: dict[str, Any], theirs: dict[str, Any] | None, runs: list[Times]
) -> list[dict[str, Any]]:
    """A row for each figure of a workload."""
    figures = [run.figures() for run in runs]
    rows = []
    for name in (*COMPARED, "num_preemptions"):
        values = [float(found[name]) for found in figures]
        real = statistics.median(values)
        rows.append(
            {
                "workload": workload,
                "figure": name,
                "(a) ours, clock": float(ours[name]),
                "(b) vLLM's, clock": None if theirs is None else float(theirs[name]),
                "(c) real": real,
                "error %": 100 * (ours[name] / real - 1) if name in COMPARED else None,
                "(c) least": min(values),
                "(c) most": max(values),
            }
        )
    return rows


def save_preset(cost: LinearCost) -> Path:
    """Put the cost among the presets, in place of one of the same name."""
    presets = json.loads(PRESETS_FILE.read_text("utf-8")) if PRESETS_FILE.is_file() else []
    presets = [p for p in presets if p["name"] != cost.name] + [cost.to_json()]
    PRESETS_FILE.write_text(json.dumps(presets, indent=1) + "\n", encoding="utf-8")
    return PRESETS_FILE


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("vllm", "mini"), default="vllm", help="leg c (vllm)")
    parser.add_argument("--requests", type=int, default=400, help="in each workload (400)")
    parser.add_argument(
        "--repeat", type=int, default=3, help="runs of leg c; the median counts (3)"
    )
    parser.add_argument(
        "--clock", choices=("steady", "wall"), default="steady",
        help="steady: slower when the machine is, benchmarks/steady.py (steady)",
    )  # fmt: skip
    parser.add_argument("--save", action="store_true", help="write the results, and the preset")
    args = parser.parse_args(argv)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    is_vllm = args.engine == "vllm"
    clock = time.perf_counter if args.clock == "wall" else SteadyClock()
    engine = vllm_engine(clock) if is_vllm else mini_engine(clock)
    # The very first steps set things up. And how many requests a second it can do.
    mixed = calibration(args.requests, math.inf)["mixed"]
    rate = len(mixed) / engine.run(mixed).duration
    engine.steps.clear()
    engine.adds.clear()
    say("timing the steps of the calibration's workloads")
    profile(engine, args.requests, rate)
    where = machine.describe()
    version = "vLLM 0.22.1" if is_vllm else "mini_vllm"

    def fitted() -> LinearCost:
        return calibrate(
            engine.steps,
            engine.adds,
            "vllm-cpu-tiny-llama" if is_vllm else "mini-vllm-cpu-tiny-llama",
            f"calibrated: {version} with the shipped checkpoint in float32, synchronous, one process, "
            f"one thread, on {where['processor']}, {where['date']}, {len(engine.steps)} steps; "
            f"python -m benchmarks.simulator --clock {args.clock}",
            num_kv_tokens=(CONFIG["num_blocks"] - 1) * CONFIG["block_size"],
            max_model_len=MAX_MODEL_LEN,
        )

    workloads = compared(args.requests, fitted())
    timed, runs = (engine.steps, engine.adds), dict[str, list[Times]]()
    engine.steps, engine.adds = [], []  # nothing of these runs may get into the fit
    for workload, requests in workloads.items():
        say(f"{workload}: {args.repeat} times {requests[-1].arrival:.0f} s and more")
        runs[workload] = [engine.run(requests) for _ in range(args.repeat)]
    # Half of the calibration before, half after: a machine that has warmed up is not the same machine.
    engine.steps, engine.adds = timed
    profile(engine, args.requests, rate)
    cost = fitted()
    fit = explain(engine.steps, cost)
    print(machine.table(fit))
    print(json.dumps(cost.to_json(), indent=1))
    rows: list[dict[str, Any]] = []
    for workload, requests in workloads.items():
        ours = medians(lambda: mini_parts(engine_config(CONFIG)), requests, cost)
        theirs = medians(lambda: vllm_sim_parts(CONFIG), requests, cost) if is_vllm else None
        rows += compare_legs(workload, ours, theirs, runs[workload])
    print(machine.table(rows))
    rates = {
        name: len(requests) / requests[-1].arrival if requests[-1].arrival else None
        for name, requests in workloads.items()
    }
    if args.save:
        command = (
            f"python -m benchmarks.simulator --engine {args.engine} --requests {args.requests} "
            f"--repeat {args.repeat} --clock {args.clock}"
        )
        more = {"fit": fit, "request_rates": rates}
        if isinstance(clock, SteadyClock):
            least, median, most = np.percentile(clock.rates, (5, 50, 95)).tolist()
            more["clock_rates"] = {"p5": least, "p50": median, "p95": most}
        print(machine.save(f"simulator-{args.engine}", command, rows, **more))
        print(save_preset(cost))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

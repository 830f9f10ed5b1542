"""The error budget of the simulator: where its figures part from a real engine's, and by how much.

    python -m benchmarks.simulator [--engine vllm|mini] [--requests N] [--repeat N] [--save]

Three legs run the same workloads:

    (a) our scheduler on the virtual clock
    (b) vLLM's own scheduler on the same clock; it decides as ours does, so its figures are equal
        (`python -m benchmarks.sim_vllm` compares them plan by plan on 500 drawn workloads)
    (c) the real engine on this CPU, fed in real time (`benchmarks/sim_real.py`)

so what is between (b) and (c) is the cost model. It is fitted to steps of other workloads than those
compared. `--engine mini` holds our own engine in leg (c): no vLLM needed, and leg (b) is left out.

`--save` writes results/simulator-ENGINE.json, and the fitted cost as a preset of `mini-vllm simulate`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.sim_real import CONFIG, MAX_MODEL_LEN, Engine, Times, mini_engine, vllm_engine
from benchmarks.sim_vllm import vllm_sim_parts
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
LOAD = 0.6
"""The rate of the open workloads, as a share of what the engine could do with all there at once. Much
nearer to 1 a queue turns an error of 1 % in a step into one of 10 % in a wait."""


def calibration(n: int) -> dict[str, list[SimRequest]]:
    """What is timed to fit the cost: decoding at many batch sizes, prompts alone, and both."""

    def at_once(count: int, prompt: str, output: str, seed: int) -> list[SimRequest]:
        times = arrival_times(count, math.inf)
        return list(random_requests(times, Lengths.parse(prompt), Lengths.parse(output), seed=seed))

    found = {
        f"{size} at once": at_once(size, "uniform:4:300", "48", 100 + size)
        for size in (1, 2, 3, 5, 8, 12, 16, 24, 32, 40, 48, 56, 64)
    }
    found["long and alone"] = at_once(4, "900", "100", 201)
    found["prompts"] = at_once(n // 4, "uniform:4:900", "uniform:1:3", 202)
    found["mixed"] = at_once(n // 4, "uniform:8:400", "uniform:4:80", 203)
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


def simulate(parts: SimParts, requests: Sequence[SimRequest], cost: LinearCost) -> dict[str, Any]:
    """The figures of a run on the virtual clock."""
    metrics = ServingMetrics(percentiles=(50, 99))
    simulator = Simulator(parts, cost, metrics)
    simulator.run(requests)
    assert not metrics.failed, metrics.first_failure
    return metrics.result(simulator.num_preemptions)


def profile(engine: Engine, n: int) -> tuple[list[TimedStep], list[float]]:
    """Steps and additions of the calibration's workloads, each run twice; the very first steps, which
    set things up, do not count."""
    works = calibration(n)
    engine.run(works["8 at once"])
    engine.steps, engine.adds = [], []
    for _ in range(2):
        for requests in works.values():
            engine.run(requests)
    return engine.steps, engine.adds


def middle(runs: list[Times]) -> dict[str, float]:
    """Of each figure the median over the runs."""
    figures = [run.figures() for run in runs]
    return {name: statistics.median([f[name] for f in figures]) for name in figures[0]}


def explain(steps: list[TimedStep], cost: LinearCost) -> list[dict[str, Any]]:
    """How well the cost fits the steps it was fitted to, by kind of step."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        work = step.work
        kind = "decode" if work.num_tokens == work.num_reqs else "with prompts"
        predicted = cost.host(work) + cost.device(work)
        kinds.setdefault(kind, []).append((step.host + step.device, predicted))
    rows = []
    for kind, pairs in sorted(kinds.items()):
        real, model = np.array(pairs).T
        off = np.abs(model / real - 1)
        rows.append(
            {
                "steps": kind,
                "how many": len(real),
                "real ms": 1e3 * float(real.mean()),
                "model ms": 1e3 * float(model.mean()),
                "median error %": 100 * float(np.median(off)),
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
        "--clock", choices=("wall", "thread"), default="wall",
        help="thread: processor time, for a machine that has other work (wall)",
    )  # fmt: skip
    parser.add_argument("--save", action="store_true", help="write the results, and the preset")
    args = parser.parse_args(argv)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    is_vllm = args.engine == "vllm"
    clock = time.perf_counter if args.clock == "wall" else time.thread_time
    engine = vllm_engine(clock) if is_vllm else mini_engine(clock)
    say("timing the steps of the calibration's workloads")
    steps, adds = profile(engine, args.requests)
    where = machine.describe()
    name = "vllm-cpu-tiny-llama" if is_vllm else "mini-vllm-cpu-tiny-llama"
    version = "vLLM 0.22.1" if is_vllm else "mini_vllm"
    cost = calibrate(
        steps,
        adds,
        name,
        f"calibrated: {version} with the shipped checkpoint in float32, synchronous, in one process, on "
        f"{where['processor']} ({where['cores']} cores), {where['date']}, {len(steps)} steps; "
        "python -m benchmarks.simulator",
        num_kv_tokens=(CONFIG["num_blocks"] - 1) * CONFIG["block_size"],
        max_model_len=MAX_MODEL_LEN,
    )
    fit = explain(steps, cost)
    print(machine.table(fit))
    print(json.dumps(cost.to_json() | {"unit": "seconds"}, indent=1))
    rows: list[dict[str, Any]] = []
    spread: dict[str, Any] = {}
    for workload, requests in compared(args.requests, cost).items():
        say(f"{workload}: {args.repeat} times {requests[-1].arrival:.0f} s and more")
        ours = simulate(mini_parts(engine_config(CONFIG)), requests, cost)
        theirs = simulate(vllm_sim_parts(CONFIG), requests, cost) if is_vllm else None
        runs = [engine.run(requests) for _ in range(args.repeat)]
        real = middle(runs)
        for figure in (*COMPARED, "num_preemptions"):
            all_runs = [run.figures()[figure] for run in runs]
            rows.append(
                {
                    "workload": workload,
                    "figure": figure,
                    "(a) ours, clock": float(ours[figure]),
                    "(b) vLLM's, clock": None if theirs is None else float(theirs[figure]),
                    "(c) real": float(real[figure]),
                    "error %": None
                    if figure == "num_preemptions"
                    else 100 * (ours[figure] / real[figure] - 1),
                    "(c) least": float(min(all_runs)),
                    "(c) most": float(max(all_runs)),
                }
            )
        spread[workload] = {"request_rate": len(requests) / (requests[-1].arrival or math.inf)}
    print(machine.table(rows))
    if args.save:
        command = (
            f"python -m benchmarks.simulator --engine {args.engine} --requests {args.requests}"
        )
        print(machine.save(f"simulator-{args.engine}", command, rows, fit=fit, workloads=spread))
        print(save_preset(cost))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

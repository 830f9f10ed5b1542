"""A million short requests through the simulator: how long, how much memory, is every block back.

    python -m benchmarks.sim_million [--requests N] [--save]

Memory is the process's greatest (`ru_maxrss`), in children of their own: one for a hundredth of the
requests, one for a tenth, one for all. It must not grow with what has finished. A second table lets
100 to 100,000 requests wait and shows what a step of the simulator costs then; the scheduler's part of it
is in `benchmarks/scheduler.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks import machine
from mini_vllm.config.engine import EngineConfig
from mini_vllm.sim import (
    Lengths,
    LinearCost,
    ServingMetrics,
    Simulator,
    arrival_times,
    load_cost,
    mini_parts,
    random_requests,
)

PROMPT, OUTPUT, RATE = "uniform:8:56", "uniform:4:28", 300.0
"""At this rate the derived A100 is busy and keeps up, so what is waiting does not pile up."""


def run(count: int) -> dict[str, Any]:
    """`count` requests; what it took of the processor, of the memory, and whether all came back."""
    cost = load_cost("a100-llama-3-8b")
    assert cost.num_kv_tokens is not None
    config = EngineConfig(num_gpu_blocks=cost.num_kv_tokens // 16, max_model_len=cost.max_model_len)
    parts = mini_parts(config)
    metrics = ServingMetrics()
    simulator = Simulator(parts, cost, metrics)
    requests = random_requests(
        arrival_times(count, RATE), Lengths.parse(PROMPT), Lengths.parse(OUTPUT)
    )
    start = time.process_time()
    simulator.run(requests)
    took = time.process_time() - start
    pool = parts.scheduler.kv_cache_manager.block_pool
    pool.check_invariants()
    return {
        "requests": count,
        "finished": metrics.completed,
        "steps": metrics.num_steps,
        "tokens": metrics.output_tokens,
        "CPU s": took,
        "us a request": 1e6 * took / count,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "blocks missing": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
        "most waiting": metrics.max_waiting,
    }


def waiting_cost(waiting: int, steps: int = 400) -> float:
    """Microseconds of CPU a step while so many wait behind 64 that decode."""
    config = EngineConfig(num_gpu_blocks=6000, max_model_len=1024, max_num_seqs=64)
    simulator = Simulator(mini_parts(config), _CONSTANT, ServingMetrics())
    requests = random_requests(
        arrival_times(64 + waiting, math.inf), Lengths("constant", 20), Lengths("constant", 900)
    )
    for request in requests:
        simulator.add(request)
    simulator._turn()  # the admission of the 64
    best = math.inf
    gc.collect()
    gc.freeze()  # as `Simulator.run` does
    for _ in range(4):
        start = time.process_time()
        for _ in range(steps // 4):
            simulator._turn()
        best = min(best, (time.process_time() - start) / (steps // 4))
    return 1e6 * best


_CONSTANT = LinearCost("constant", "a second a step", (0.0,) * 7, (1.0, *[0.0] * 6))


def child(count: int) -> dict[str, Any]:
    """`run` in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.sim_million", "--child", str(count)]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000, help="the most (1,000,000)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="write results/sim-million.json")
    args = parser.parse_args(argv)
    if args.child is not None:
        print(json.dumps(run(args.child)))
        return 0
    rows = [child(max(args.requests // part, 1)) for part in (100, 10, 1)]
    print(machine.table(rows))
    growth: list[dict[str, Any]] = [
        {"waiting": n, "us a step": waiting_cost(n)} for n in (100, 1_000, 10_000, 100_000)
    ]
    print()
    print(machine.table(growth))
    if args.save:
        command = f"python -m benchmarks.sim_million --requests {args.requests}"
        print(machine.save("sim-million", command, rows + growth))
    return 1 if any(row["blocks missing"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())

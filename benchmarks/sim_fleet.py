"""A fleet of a thousand engines on the virtual clock: time, memory, and which router does best on what.

    python -m benchmarks.sim_fleet [--requests N] [--routers N] [--save]

The first table is `mini-vllm simulate` with 1,000 replicas, in a process for each number of requests: 50,000,
200,000 and N. Memory is the process's greatest; it must not grow with the requests that have finished. The
second is `mini-vllm sweep` over the routers on two workloads, 100 replicas each: prompts that share prefixes,
and prompts and answers of very unequal length.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine

FLEET = (
    "--replicas 1000 --router least-loaded --num-gpu-blocks 200 --request-rate 30000 "
    "--input-len uniform:8:56 --output-len uniform:4:28 --prefix-len 64 --num-prefixes 200"
)
ROUTERS = "--set router=round-robin,least-loaded,prefix --replicas 100 --num-gpu-blocks 2000"
WORKLOADS = {
    "shared prefixes": "--request-rate 1500 --prefix-len 1000 --num-prefixes 2000 --input-len 100 "
    "--output-len lognormal:60:0.8",
    "unequal lengths": "--request-rate 1500 --input-len lognormal:300:1.3:4000 "
    "--output-len lognormal:60:1.3:1000",
}
EXPLAINED = {
    "shared prefixes": (
        "A replica's cache holds about 30 of the 2,000 prefixes. The prefix router sends each to where it "
        "was before, so 20 live on each replica and two thirds of the prompt tokens are hits; the others "
        "compute nearly every prompt whole. Least-loaded is hardly better than turns, and its median is "
        "twice as long: an engine's count is from before its latest step, and each publication wipes out "
        "what the router has sent since, so several prompts meet on one replica. Published every "
        "millisecond instead of every 100, its P99 TTFT is 2,599 ms."
    ),
    "unequal lengths": (
        "Taking turns puts prompts behind a long one while other replicas are free; counts show the queue "
        "that has formed, so least-loaded has the shorter tail. No two prompts share a block, so the "
        "prefix router has nothing to follow and is least-loaded to the last figure."
    ),
}
"""Why the ranking is as it is, in the results beside it."""
COMMAND = (sys.executable, "-m", "mini_vllm.entrypoints.cli")


def fleet_row(figures: dict[str, Any], cpu_s: float, peak_kb: int) -> dict[str, Any]:
    """A row of the first table, from what a run has written and what the system says of its process."""
    return {
        "requests": figures["completed"] + figures["failed"],
        "finished": figures["completed"],
        "steps": figures["num_steps"],
        "tokens": figures["total_output_tokens"],
        "CPU s": cpu_s,
        "us a request": 1e6 * cpu_s / figures["completed"],
        "peak MB": peak_kb / 1024,
        "most waiting": figures["max_waiting"],
    }


def run_fleet(count: int) -> dict[str, Any]:
    """`count` requests through the fleet, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        argv = ["simulate", *shlex.split(FLEET), "--num-prompts", str(count), "--json", str(file)]
        child = subprocess.Popen([*COMMAND, *argv], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{shlex.join(argv)} ended with {os.waitstatus_to_exitcode(status)}")
        figures = json.loads(file.read_text("utf-8"))
    return fleet_row(figures, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def rank_routers(count: int) -> list[dict[str, Any]]:
    """The routers on each workload, the best by its 99th percentile of TTFT first."""
    ranked = []
    for workload, flags in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.jsonl"
            argv = [*shlex.split(ROUTERS), *shlex.split(flags), "--num-prompts", str(count)]
            subprocess.run([*COMMAND, "sweep", *argv, "--json", str(file)], check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        ranked += [
            {
                "workload": workload,
                "router": row["router"],
                "requests/s": row["request_throughput"],
                "median TTFT ms": row["median_ttft_ms"],
                "p99 TTFT ms": row["p99_ttft_ms"],
                "p99 TPOT ms": row["p99_tpot_ms"],
                "hit %": 100 * row["cached_prompt_tokens"] / row["total_input_tokens"],
                "most waiting": row["max_waiting"],
                "command": row["command"],
            }
            for row in sorted(rows, key=lambda row: float(row["p99_ttft_ms"]))
        ]
    return ranked


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000_000, help="the most (10,000,000)")
    parser.add_argument("--routers", type=int, default=8_000, help="requests a router (8,000)")
    parser.add_argument("--save", action="store_true", help="write results/sim-fleet.json")
    args = parser.parse_args(argv)
    rows = [run_fleet(min(count, args.requests)) for count in (50_000, 200_000, args.requests)]
    print(machine.table(rows))
    print()
    ranked = rank_routers(args.routers)
    print(machine.table([{k: v for k, v in row.items() if k != "command"} for row in ranked]))
    if args.save:
        command = (
            f"python -m benchmarks.sim_fleet --requests {args.requests} --routers {args.routers}"
        )
        print(machine.save("sim-fleet", command, rows, routers=ranked, explained=EXPLAINED))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""CPU time of a scheduling step: `mini_vllm.Scheduler` beside vLLM's own.

    python -m benchmarks.scheduler [GOLDEN.jsonl.gz ...] [--save]

Two tables. The first drives both schedulers through the same workloads, alternating, and times
`schedule()` plus `update_from_output()` in CPU time of the thread; both take the same decisions, which
is checked. Without vLLM installed its columns stay empty. The second grows the waiting queue and shows
what that costs a step of ours.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from course.parity import mini_parts
from course.parity.record import vllm_parts
from course.parity.traces import Arrival, Config, Parts, Run, Workload, read_traces

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"


def measure_clock() -> int:
    """Nanoseconds that reading the clock adds to an interval. A small step takes 30 times that."""
    now = time.thread_time_ns
    return min(-now() + now() for _ in range(10_000))


CLOCK_NS = measure_clock()


class TimedScheduler:
    """A scheduler that counts the CPU time spent in its two calls of a step, in nanoseconds.

    What the clock itself takes is taken off: it would make a slow scheduler look better beside a fast one.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent = 0
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def schedule(self) -> Any:
        start = time.thread_time_ns()
        output = self._inner.schedule()
        self.spent += time.thread_time_ns() - start - CLOCK_NS
        self.steps += 1
        return output

    def update_from_output(self, *args: Any) -> Any:
        start = time.thread_time_ns()
        result = self._inner.update_from_output(*args)
        self.spent += time.thread_time_ns() - start - CLOCK_NS
        return result


def drive(
    work: Workload, make_parts: Callable[[Config], Parts]
) -> tuple[TimedScheduler, list[str]]:
    """Run a workload to its end; the timed scheduler and every decision, as JSON.

    As text, because Python's collector runs inside the timed calls and would go through whatever else is
    kept: the benchmark's own records would be timed as the scheduler's.
    """
    parts = make_parts(work["config"])
    timed = TimedScheduler(parts.scheduler)
    run = Run(work, replace(parts, scheduler=timed))
    decisions = []
    # What was there before is not this run's garbage; upstream freezes it at start-up as well.
    gc.collect()
    gc.freeze()
    while not run.done:
        run.arrive()
        decisions.append(json.dumps(run.decide(), sort_keys=True))
    return timed, decisions


def large(name: str, seed: int = 0) -> Workload:
    """Workloads with 64 and more requests running at once."""
    rng = random.Random(f"{name} {seed}")

    def words(count: int) -> list[int]:
        return [rng.randint(3, 50) for _ in range(count)]

    config: Config = {
        "block_size": 16,
        "num_blocks": 4000,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 0,
        "enable_prefix_caching": True,
        "max_model_len": 1024,
        "policy": "fcfs",
    }
    count, prompt_len, shared, max_tokens, spread = 256, 64, 0, 100, 0
    if name == "decode, 64 running":
        pass
    elif name == "decode, 256 running":
        count, config["max_num_seqs"] = 512, 256
        config["num_blocks"] = 8000
    elif name == "shared prefix, 128 running":
        count, prompt_len, shared, spread = 400, 100, 320, 60
        config["max_num_seqs"] = 128
    elif name == "long prompts in chunks, 64 running":
        count, prompt_len, max_tokens, spread = 200, 500, 40, 100
        config["max_num_batched_tokens"] = 512
        config["long_prefill_token_threshold"] = 128
    elif name == "short of blocks, 96 running":
        count, spread, config["max_num_seqs"] = 300, 40, 96
        config["num_blocks"], config["policy"] = 900, "priority"
    else:
        raise ValueError(f"unknown workload {name!r}")
    prefix = words(shared)
    requests: list[Arrival] = [
        {
            "id": f"r{i:03d}",
            "step": rng.randint(0, spread),
            "prompt": prefix + words(prompt_len + rng.randint(-20, 20)),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "priority": rng.randint(0, 3),
            "abort": None,
        }
        for i in range(count)
    ]
    return {"seed": seed, "config": config, "requests": requests}


LARGE = (
    "decode, 64 running",
    "decode, 256 running",
    "shared prefix, 128 running",
    "long prompts in chunks, 64 running",
    "short of blocks, 96 running",
)


def compare(name: str, works: list[Workload], with_vllm: bool, repeat: int) -> dict[str, Any]:
    """Time both on the same workloads; the best of `repeat` runs each, alternating."""
    ours, theirs, steps, scheduled = 0, 0, 0, 0
    for work in works:
        best = {"ours": 1 << 62, "theirs": 1 << 62}
        for _ in range(repeat):
            timed, decisions = drive(work, mini_parts)
            best["ours"] = min(best["ours"], timed.spent)
            if with_vllm:
                other, expected = drive(work, vllm_parts)
                best["theirs"] = min(best["theirs"], other.spent)
                if decisions != expected:
                    raise SystemExit(f"{name}: the decisions differ; run course.parity first")
        ours += best["ours"]
        theirs += best["theirs"]
        steps += timed.steps
        scheduled += sum(len(json.loads(d)["scheduled"]) for d in decisions)
    return {
        "workload": name,
        "steps": steps,
        "requests a step": scheduled / steps,
        "mini_vllm us a step": ours / steps / 1e3,
        "vLLM us a step": theirs / steps / 1e3 if with_vllm else None,
        "times faster": theirs / ours if with_vllm else None,
    }


def waiting_cost(num_waiting: int, policy: str, steps: int = 300) -> float:
    """Microseconds of CPU a step while `num_waiting` requests wait behind 64 that decode."""
    work = large("decode, 64 running")
    config = work["config"]
    config["policy"] = policy
    parts = mini_parts(config)
    timed = TimedScheduler(parts.scheduler)
    rng = random.Random(0)
    run = Run({"seed": 0, "config": config, "requests": []}, replace(parts, scheduler=timed))
    for i in range(64 + num_waiting):
        arrival: Arrival = {
            "id": f"r{i:06d}", "step": 0, "prompt": [rng.randint(3, 50) for _ in range(20)],
            "max_tokens": 900, "ignore_eos": True, "priority": 0, "abort": None,
        }  # fmt: skip
        request = parts.make_request(arrival, i)
        run.live[arrival["id"]] = request
        run._index[arrival["id"]] = i
        timed.add_request(request)
    run.decide()  # admission of the 64 is not what is measured
    best = 1 << 62
    for _ in range(3):
        timed.spent = timed.steps = 0
        for _ in range(steps // 3):
            run.decide()
        best = min(best, timed.spent // timed.steps)
    return best / 1e3


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("golden", nargs="*", help="trace files (default: the one in tests/golden)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, the best counts (3)")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/scheduler.json"
    )
    args = parser.parse_args(argv)
    with_vllm = importlib.util.find_spec("vllm") is not None
    files = args.golden or sorted(str(p) for p in GOLDEN.glob("scheduler-*.jsonl.gz"))
    golden: list[Workload] = [trace for file in files for _, trace in read_traces(file)]
    rows = [compare(f"golden ({len(golden)} workloads)", golden, with_vllm, args.repeat)]
    for name in LARGE:
        rows.append(compare(name, [large(name)], with_vllm, args.repeat))
    print(machine.table(rows))
    growth: list[dict[str, Any]] = []
    for waiting in (100, 1_000, 10_000, 100_000):
        growth.append(
            {"waiting": waiting}
            | {
                f"{policy} us a step": waiting_cost(waiting, policy)
                for policy in ("fcfs", "priority")
            }
        )
    print()
    print(machine.table(growth))
    if args.save:
        names = " ".join(Path(file).name for file in files)
        print(machine.save("scheduler", f"python -m benchmarks.scheduler {names}", rows + growth))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

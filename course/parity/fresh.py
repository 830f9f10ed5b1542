"""Workloads that nobody has run: vLLM's scheduler and `mini_vllm`'s decide them side by side.

    python -m course.parity.fresh FIRST COUNT [--shape SHAPE...]

For each of COUNT seeds from FIRST on: a workload of every shape (by default of those with drafts), with
synchronous scheduling and with asynchronous. Needs vLLM, as `course.parity.record` does.

Prints the first difference in words, and totals. Under the policy `priority` the engine does two things
otherwise on purpose (`mini_vllm/core/sched/scheduler.py`). Where a workload meets one of them, it is decided
once more with vLLM's way put back, `UpstreamScheduler`; if that is equal, it counts apart. Exit code 0: no
difference, 1: some, 2: bad arguments.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable

from course.parity.decisions import explain, replay, steps_of
from course.parity.record import record, vllm_parts
from course.parity.workloads import SHAPES, workload
from mini_vllm.core.sched.upstream_scheduler import UpstreamAsyncScheduler, UpstreamScheduler

DRAFTS = [name for name, ranges in SHAPES.items() if "drafts" in ranges]


def compare(seed: int, shape: str, async_scheduling: bool, totals: Counter[str]) -> str | None:
    """Decide one workload on both, and count it; the report of a difference, or None."""
    work = workload(seed, shape)
    trace = record(work, vllm_parts(work["config"], async_scheduling), async_scheduling)
    totals["workloads"] += 1
    totals["steps"] += steps_of(trace)
    totals["preemptions"] += sum(trace["preemptions"].values())
    for step in trace["steps"]:
        totals["drafts"] += sum(map(len, step.get("drafts", {}).values()))
    found = replay(f"{shape} {seed}", trace)
    if found is None:
        return None
    if work["config"]["policy"] == "priority":
        upstream = UpstreamAsyncScheduler if async_scheduling else UpstreamScheduler
        if replay(f"{shape} {seed}", trace, upstream) is None:
            totals["on purpose"] += 1
            return None
    totals["differences"] += 1
    return explain(found)


def compare_all(seeds: Iterable[int], shapes: Iterable[str], totals: Counter[str]) -> str | None:
    """The first report of a difference, None if there is none."""
    first, names = None, list(shapes)
    for seed in seeds:
        for shape in names:
            for async_scheduling in (False, True):
                report = compare(seed, shape, async_scheduling, totals)
                first = first or report
    return first


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.parity.fresh",
        description="Compare the two schedulers on workloads that nobody has run.",
    )
    parser.add_argument("first", type=int, metavar="FIRST", help="the first seed")
    parser.add_argument("count", type=int, metavar="COUNT", help="how many seeds")
    parser.add_argument(
        "--shape", nargs="+", choices=SHAPES, default=DRAFTS, help="what to draw from"
    )
    args = parser.parse_args(argv)
    began, totals = time.perf_counter(), Counter[str]()
    try:
        report = compare_all(range(args.first, args.first + args.count), args.shape, totals)
    except ImportError as error:
        print(f"this needs vLLM: {error}; see SETUP.md", file=sys.stderr)
        return 2
    if report is not None:
        print(report, end="\n\n")
    print(
        f"{totals['workloads']:,} workloads, {totals['steps']:,} steps, {totals['preemptions']:,} "
        f"preemptions, {totals['drafts']:,} drafts: {totals['differences']} differences, and "
        f"{totals['on purpose']} on purpose ({time.perf_counter() - began:.0f} s)"
    )
    return 1 if totals["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Lab 02-07: every recorded trace on your blocks, and the first difference of each.

    python phase-02-paged-attention/labs/lab-07-same-as-vllm/replay.py
    python ….py --impl starter
    python ….py --impl starter FILE …

FILE is a file of traces, `.jsonl` or `.jsonl.gz`; without one it is the course's own, 17 traces.
`python -m course.parity.record` makes others where vLLM is installed. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from course.parity.traces import TraceError, read_traces  # noqa: E402
from course.parity.turns import follow  # noqa: E402

GOLDEN = HERE.parents[2] / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=[str(GOLDEN)], metavar="FILE")
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    args = parser.parse_args()
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_02_07_replayed")
    for part in (lab.MyBlockPool, lab.MyKVCacheManager):
        whose = "the engine's" if part.__module__.startswith("mini_vllm") else "yours"
        print(f"{part.__name__:15} {whose}")
    traces = unlike = tables = 0
    print("\nseed  steps  tables  victims")
    try:
        for file in args.files:
            for _, trace in read_traces(file):
                steps = follow(trace)
                found = lab.first_difference(trace, steps, lab.make_manager)
                held = sum(len(turns.decision["blocks"]) for turns in steps)
                victims = sum(trace["preemptions"].values())
                print(f"{trace['seed']:4} {len(steps):6} {held:7} {victims:8}")
                if found is not None:
                    print(
                        "\n".join(f"      {line}" for line in lab.report(trace, found).split("\n"))
                    )
                traces, tables, unlike = traces + 1, tables + held, unlike + (found is not None)
    except TraceError as error:
        raise SystemExit(str(error)) from None
    print(f"\n{traces} traces, {tables:,} block tables: {unlike} traces with a difference")


if __name__ == "__main__":
    run_script(main)

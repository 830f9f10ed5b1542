"""Lab 03-08: the leaderboard.

    python phase-03-scheduler/labs/lab-08-beat-the-scheduler/leaderboard.py [--impl starter] [--name NAME]

Prints how eight policies stand, and yours if you say whose: `--impl starter`. With `--name` yours is written
into leaderboard.json. `--fresh` runs the eight again. The tests use other draws of the same workloads.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[2]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import policies  # noqa: E402
import support  # noqa: E402

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

FILE = HERE / "leaderboard.json"
NAMED = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}


def stands(lab: Any, policy: Any) -> support.Standing:
    return support.stand(lambda base: lab.make_scheduler(base, policy))


def the_eight() -> dict[str, support.Standing]:
    """The engine's two, the solution's, and five more."""
    solution = load_module(NAMED["solution"], "lab_03_08_solution")
    found = {name: support.stand(None, name) for name in policies.BUILT_IN}
    found["solution"] = stands(solution, solution.policy)
    return found | {name: stands(solution, one) for name, one in policies.OTHERS.items()}


def read() -> dict[str, support.Standing]:
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: support.Standing(**row) for name, row in rows.items()}


def write(board: dict[str, support.Standing]) -> None:
    rows = {name: asdict(row) for name, row in board.items()}
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def show(board: dict[str, support.Standing]) -> None:
    """The best goodput first; whoever lets somebody starve stands below all who do not."""
    print("policy           goodput  p99 TTFT  p99 ITL  fairness  preempted  longest wait")
    for name, row in sorted(board.items(), key=lambda item: (item[1].starves, -item[1].goodput)):
        print(
            f"{name:16}  {row.goodput:6.3f}  {row.p99_ttft_ms:5.0f} ms  {row.p99_itl_ms:4.1f} ms  "
            f"{row.fairness:8.3f}  {row.preemptions:9}  {row.waited:5.2f} x FCFS"
            f"{', starves' if row.starves else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", help="solution, starter or a file: run that one, too")
    parser.add_argument("--name", help="write it into leaderboard.json under this name")
    parser.add_argument("--fresh", action="store_true", help="run the eight again, and write them")
    args = parser.parse_args()
    board = the_eight() if args.fresh else read()
    if args.impl is not None:
        lab = load_module(NAMED.get(args.impl, Path(args.impl)), "lab_03_08_leaderboard")
        board[args.name or "yours"] = stands(lab, lab.policy)
    if args.fresh or args.name:
        write(board)
    show(board)


if __name__ == "__main__":
    run_script(main)

"""Given: Noor's day with each way to choose who goes, by your functions: loads, the steps that have some, the
most in a step, the ticks of the whole day, and the p99 of the gaps between tokens.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_06_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_11_06_{which}")
    day = support.day()
    sizes = [step.size for step in day]
    steps = [list(step.adapters) for step in day]
    ways: dict[str, list[int]] = {}
    for seed in support.HASH_SEEDS:
        resident: list[int] = []
        ways[f"the pin, hash seed {seed}"] = [
            len(lab.pinned_step(resident, walk, support.SLOTS))
            for walk, _ in support.recorded_day(seed)
        ]
    ways["the pin, running first"] = support.loads_of(support.walk_as_given, steps, support.SLOTS)
    ways["your fix"] = support.loads_of(lab.apply_adapters, steps, support.SLOTS)
    ways["the optimum"] = lab.optimum(steps, support.SLOTS)
    print(f"{'':24} loads  in steps  at most  ticks  p99")
    for way, loads in ways.items():
        ticks = len(loads) + support.LOAD_TICKS * sum(loads)
        longest = lab.p99(lab.gaps(sizes, loads, support.LOAD_TICKS))
        in_steps = sum(number > 0 for number in loads)
        print(f"{way:24} {sum(loads):5} {in_steps:9} {max(loads):8} {ticks:6} {longest:4}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

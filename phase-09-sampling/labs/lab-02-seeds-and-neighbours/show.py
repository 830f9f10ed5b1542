"""Given: which of your experiments notice which fault.

    python show.py [solution | starter]

A line per scheme: yours, and six with a fault. `changed` means that the request with seed 7 got other tokens
than alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_02_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_09_02_{which}")
    situations = lab.experiments()
    for number, one in enumerate(situations, start=1):
        print(f"{number}: {one}")
    schemes = {
        "your streams": lambda: lab.Streams(0),
        "your stateless noise": lambda: support.Stateless(lab.stateless_noise, lab.Row),
        **support.FAULTS,
    }
    print(f"\n{'':22}{''.join(f'{n:<10}' for n in range(1, len(situations) + 1))}".rstrip())
    for name, make_scheme in schemes.items():
        changed = lab.changed_by(support.player(lab, make_scheme), situations)
        marks = ("changed" if one in changed else "-" for one in situations)
        print(f"{name:22}{''.join(f'{mark:10}' for mark in marks)}".rstrip())


if __name__ == "__main__":
    main(*sys.argv[1:2])

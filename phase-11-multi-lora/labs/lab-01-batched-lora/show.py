"""Given: what a step costs by your functions in four ways, and what the tenants' requests say.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_01_support")
SIZES = {"q": 128, "k": 64, "v": 64}
STEP = support.make_step(
    50, [0] * 40 + [-1] + [1] * 30 + [0, 2, 1, 2, -1, 0, 2], ["qkv", "qkv", "qv", ""], SIZES, 128
)
"""At the shipped model's q, k and v: two prompts and eight single rows."""


SAID = (
    ("four slots", False),
    ("three slots", True),
    ("Ada and Eve", True),
    ("Cy's adapter removed", True),
)


def runs_of(slots: list[int]) -> list[tuple[int, int]]:
    """Neighbours with one slot: start and stop."""
    starts = [i for i, slot in enumerate(slots) if i == 0 or slots[i - 1] != slot]
    return list(zip(starts, [*starts[1:], len(slots)], strict=True))


def by_row(lab: Any, x: Any, weight: Any, slots: Any) -> None:
    for row, slot in enumerate(STEP.slot_of_row):
        lab.single_layer(x[row : row + 1], weight, slots[slot] if slot >= 0 else [])


def by_run(lab: Any, x: Any, weight: Any, slots: Any) -> None:
    y = x @ weight.T
    for start, stop in runs_of(STEP.slot_of_row):
        lab.add_grouped(y[start:stop], x[start:stop], STEP.slot_of_row[start:stop], slots)


def merged(lab: Any, x: Any, weight: Any, slots: Any) -> None:
    """A copy of the weight for each tenant, with the adapter in it."""
    groups = lab.group_rows(STEP.slot_of_row)
    bare = [row for row, slot in enumerate(STEP.slot_of_row) if slot < 0]
    for slot, rows in [(-1, bare), *groups.items()]:
        x[rows] @ support.count_in(x.tally, STEP.merged(slot), True).T


def grouped(lab: Any, x: Any, weight: Any, slots: Any) -> None:
    lab.step_layer(x, weight, list(STEP.slot_of_row), slots)


WAYS: dict[str, Callable[..., None]] = {
    "row by row": by_row,
    "merged copies": merged,
    "base once, run by run": by_run,
    "base once, grouped": grouped,
}


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_11_01_{which}")
    print(f"{len(STEP.x)} rows{'':17} products  multiplications  weights read")
    for name, way in WAYS.items():
        tally = support.Tally()
        way(lab, *support.counted_parts(lab, STEP, tally))
        print(f"{name:24} {tally.products:8} {tally.multiplications:16,} {tally.read:13,}")
    told = set()
    for name, as_cpu_build in SAID:
        run = support.RUNS[name]
        answers = support.play(lab, run, as_cpu_build)
        for (who, prompt, _), tokens in zip(run.requests, answers, strict=True):
            label = f"eve on the CPU build: {name}" if as_cpu_build else who
            if (
                prompt == support.PROMPT
                and label not in told
                and (who == "eve" or not as_cpu_build)
            ):
                told.add(label)
                print(f"{label:44}{support.text_of(tokens)[:36].strip()}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

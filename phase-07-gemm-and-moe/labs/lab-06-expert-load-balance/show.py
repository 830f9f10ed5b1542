"""How evenly two or four GPUs share the shipped Mixtral's tokens on three kinds of text, with your functions.

python show.py [--impl solution|starter|FILE]

All numbers are means over the four layers. "busiest over mean" is of the tokens of all 32 steps; the column
"step by step" takes each step for itself. "experts read" is what the GPU that reads most reads in a step.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import support

from course.learner.labs import load_module

HERE = Path(__file__).parent
ROWS = ((2, 8), (2, 10), (4, 8), (4, 12))
MIXTRAL_EXPERT = 3 * 4096 * 14336 * 2  # bytes of one expert of Mixtral-8x7B in bfloat16


def implementation(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` beside this file, or any other path; else what LAB_IMPL says."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    return load_module(path, "lab_07_06")


def row(lab: ModuleType, kind: str, gpus: int, slots: int) -> list[float]:
    """The five numbers of a line: linear, chat's placement, own, own step by step, experts read."""
    routing = support.routing()
    one = np.arange(8)
    numbers = []
    for steps, chat in zip(routing[kind], routing["chat"], strict=True):
        load, of_chat = lab.window_load(steps, one, 8), lab.window_load(chat, one, 8)
        own = lab.rebalance(load, slots, gpus)
        numbers.append(
            [
                lab.imbalance(load, one, gpus),
                lab.imbalance(load, lab.rebalance(of_chat, slots, gpus), gpus),
                lab.imbalance(load, own, gpus),
                float(np.mean([lab.imbalance(step, own, gpus) for step in steps])),
                float(np.mean([lab.experts_read(step, own, gpus) for step in steps])),
            ]
        )
    means: list[float] = np.mean(numbers, axis=0).tolist()
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", help="starter, solution or a file (solution)")
    lab = implementation(parser.parse_args().impl)
    print("                     busiest over mean                             experts read")
    print("GPUs  slots  text    linear  placed for chat  for itself  step by step   in a step")
    for gpus, slots in ROWS:
        for kind in support.KINDS:
            linear, chat, own, step, read = row(lab, kind, gpus, slots)
            print(
                f"{gpus:4}  {slots:5}  {kind:<6}  {linear:6.2f}  {chat:15.2f}  {own:10.2f}  {step:12.2f}"
                f"  {read:10.1f}"
            )
    print(f"\nAn expert of Mixtral-8x7B in bfloat16: {MIXTRAL_EXPERT / 1e6:.0f} MB per layer.")


if __name__ == "__main__":
    main()

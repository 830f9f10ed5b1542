"""How evenly four GPUs share the shipped Mixtral's tokens on two kinds of text, and what a copy is worth.

python show.py [--impl solution|starter|FILE]

All numbers are means over the four layers. "busiest over mean" is of the tokens of all 32 steps; the column
"step by step" takes each step for itself. "slots read" is what the GPU that reads most reads in a step. The
second table has microseconds per layer and step, for experts of Mixtral-8x7B's size on H200s: steps of 64
tokens as recorded, or 16 or 32 of them as one step.
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
KINDS = ("chat", "sums")
GPUS = 4
SLOTS = (8, 12, 16)
TOGETHER = (1, 16, 32)
"""Recorded steps that are taken as one."""


def implementation(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` beside this file, or any other path; else what LAB_IMPL says."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    return load_module(path, "lab_07_06")


def row(lab: ModuleType, kind: str, slots: int) -> list[float]:
    """The five numbers of a line: linear, chat's placement, own, own step by step, slots read."""
    routing = support.routing()
    one = np.arange(8)
    numbers = []
    for steps, chat in zip(routing[kind], routing["chat"], strict=True):
        load, of_chat = lab.window_load(steps, one, 8), lab.window_load(chat, one, 8)
        own = lab.rebalance(load, slots, GPUS)
        numbers.append(
            [
                lab.imbalance(load, one, GPUS),
                lab.imbalance(load, lab.rebalance(of_chat, slots, GPUS), GPUS),
                lab.imbalance(load, own, GPUS),
                float(np.mean([lab.imbalance(step, own, GPUS) for step in steps])),
                float(np.mean([lab.experts_read(step, own, GPUS) for step in steps])),
            ]
        )
    means: list[float] = np.mean(numbers, axis=0).tolist()
    return means


def microseconds(lab: ModuleType, kind: str, together: int, slots: int) -> float:
    """A layer's experts in a step of `together` recorded ones, on the text's own placement."""
    times = []
    for steps in support.routing()[kind]:
        placed = lab.rebalance(steps.sum(axis=0), slots, GPUS)
        for step in steps.reshape(-1, together, steps.shape[1]).sum(axis=1):
            times.append(lab.step_us(step, placed, GPUS, support.TOKEN_US, support.SLOT_US))
    return float(np.mean(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", help="starter, solution or a file (solution)")
    lab = implementation(parser.parse_args().impl)
    print("               busiest over mean                            slots read")
    print("slots  text    linear  placed for chat  for itself  step by step  in a step")
    for slots in SLOTS[:2]:
        for kind in KINDS:
            linear, chat, own, step, read = row(lab, kind, slots)
            print(
                f"{slots:5}  {kind:<6}  {linear:6.2f}  {chat:15.2f}  {own:10.2f}  {step:12.2f}"
                f"  {read:9.1f}"
            )
    print("\ntokens per step,       us per layer, with slots")
    print("2 choices each   text  " + "".join(f"{slots:6}" for slots in SLOTS))
    for kind in KINDS:
        for together in TOGETHER:
            times = [microseconds(lab, kind, together, slots) for slots in SLOTS]
            shown = "".join(f"{time:6.0f}" for time in times)
            print(f"{64 * together:15,}  {kind:<6}{shown}")


if __name__ == "__main__":
    main()

"""What a group size costs and what it buys, on the shipped model's own layers, with your functions.

python show.py [--impl solution|starter|FILE]
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
SIZES = (16, 32, 64, 128, -1)


def implementation(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` beside this file, or any other path; else what LAB_IMPL says."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    return load_module(path, "lab_06_02")


def rows(lab: ModuleType, symmetric: bool) -> list[str]:
    """A line for each group size: bits a weight, error by kind of layer, kernels that take all layers."""
    linears = support.linear_weights()
    kinds = ("q", "k", "v", "o", "gate", "up", "down")
    lines = []
    for size in SIZES:
        total = sum(w.size for w in linears.values())
        layout = "pack-quantized"
        spent = sum(
            sum(lab.layer_bytes(layout, *w.shape, size, symmetric).values()) - 16
            for w in linears.values()
        )
        errors = [
            np.mean([lab.weight_error(w, size, symmetric)
                     for name, w in linears.items() if name.endswith(f".{kind}_proj")])
            for kind in kinds
        ]  # fmt: skip
        taken = [
            kernel
            for kernel in ("marlin", "machete", "cpu")
            if not any(lab.refused_by(kernel, o, i, size) for o, i in support.as_run().values())
        ]
        shown = "  ".join(f"{100 * error:5.2f}" for error in errors)
        name = "row" if size == -1 else str(size)
        lines.append(f"{name:>5}  {8 * spent / total:6.3f}   {shown}   {', '.join(taken)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impl", help="starter, solution or a file (solution)")
    lab = implementation(parser.parse_args().impl)
    for symmetric in (True, False):
        print("symmetric" if symmetric else "\nasymmetric")
        print("                 error in % of the weight's size")
        print("group    bits       q      k      v      o   gate     up   down   taken by")
        print("\n".join(rows(lab, symmetric)))


if __name__ == "__main__":
    main()

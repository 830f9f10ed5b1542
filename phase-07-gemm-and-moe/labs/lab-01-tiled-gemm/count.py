"""Given: the bill per token, counted while your loop runs, for batches of 1 to 1,024 tokens.

    python count.py [solution | starter]

The matrix is a sixteenth of w1 of a Mixtral's expert in both directions, 256 x 896, in 16 bits. The
second tile of each batch is the one that you choose for a room of 24,576 elements.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_07_01_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_07_01_{which}")
    k, n, item = 256, 896, 2
    print("tokens  tile        bytes per token:      x        w    out")
    for m in (1, 16, 64, 256, 1024):
        for tile in (lab.Tile(64, 64, 32), lab.choose_tile(m, n, k, 24576)):
            moved = support.count(lab, m, n, k, tile)
            bill = [item * moved[name] / m for name in ("x", "w", "out")]
            shape = "x".join(map(str, tile))
            print(f"{m:6}  {shape:12}{bill[0]:23,.0f} {bill[1]:8,.0f} {bill[2]:6,.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

"""Given: how many rows the blocks of your lists hold, and how many of them are padding.

    python padding.py [solution | starter]

Random routers, every expert as likely as any other; an average of ten batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_07_03_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_07_03_{which}")
    print("                          blocks of 16             blocks of 64")
    print("experts  tokens  pairs    rows  padding  list      rows  padding  list")
    for experts, top_k in ((8, 2), (128, 8)):
        for tokens in (1, 4, 16, 64, 256, 1024):
            rng = np.random.RandomState(0)
            told = f"{experts:7}{tokens:8}{tokens * top_k:7}"
            for block in (16, 64):
                lists = [
                    lab.assign(support.choose(tokens, top_k, experts, rng), block, experts)
                    for _ in range(10)
                ]
                rows = sum(used for _, _, used in lists) / 10
                share = 1 - tokens * top_k / rows
                told += f"{rows:8.0f}{share:9.0%}{'   no' if lists[0][0] is None else '  yes':>6}  "
            print(told.rstrip())


if __name__ == "__main__":
    main(*sys.argv[1:2])

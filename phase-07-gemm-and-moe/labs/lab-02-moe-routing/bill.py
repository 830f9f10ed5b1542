"""Given: Ilse's bill, counted while your layer runs: how many experts a batch reads, and GB per token.

    python bill.py [solution | starter]

Twenty layers of eight experts, two active, with random routers. The layers are small, since only reads are
counted. "even": every expert is as likely as any other. "uneven": a layer's router prefers some.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_07_02_support")
GB = 32 * 3 * 4096 * 14336 * 2 / 1e9  # of one expert in all of Mixtral's 32 layers


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_07_02_{which}")
    print("tokens   experts read, even   GB per token   experts read, uneven   GB per token")
    for tokens in (1, 4, 16, 64, 256):
        touched = []
        for preferred in (0.0, 1.5):
            reads = 0
            for layer in range(20):
                x, w13, w2, logits = support.draw(tokens, 8, 2, 4, 4, layer)
                bias = np.random.RandomState(100 + layer).standard_normal(8)
                routed = lab.route(logits + (preferred * bias).astype(np.float32), 2, True)
                counted = support.Experts(w13)
                lab.moe_grouped(x, counted, w2, *routed)
                reads += sum(counted.reads.values())
            touched.append(reads / 20)
        even, uneven = touched
        bill = [one * GB / tokens for one in touched]
        print(f"{tokens:6}{even:19.2f}{bill[0]:17.2f}{uneven:19.2f}{bill[1]:17.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

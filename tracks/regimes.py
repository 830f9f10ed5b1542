"""Bytes, arithmetic and launches on your own processor: three ways in which time grows with the batch.

    python tracks/regimes.py

A matrix of `size` by `size` float32 weights is multiplied with a batch of columns, as a linear layer does
in a step with that many tokens. Printed are microseconds, the best of several runs, and how much longer
each batch takes than one of half its size. BLAS runs on one thread.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
from threadpoolctl import threadpool_limits

BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512)  # for a single column BLAS has another routine


def measure(size: int, batch: int, seconds: float = 0.3) -> float:
    """Seconds for one product of a `[size, size]` matrix with a `[size, batch]` one, the best of many."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((size, size), np.float32)
    tokens = rng.standard_normal((size, batch), np.float32)
    out = np.empty((size, batch), np.float32)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        np.matmul(weights, tokens, out=out)
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    print("size    " + "".join(f"{batch:>10}" for batch in BATCHES))
    with threadpool_limits(limits=1, user_api="blas"):
        for size in (4096, 16):
            times = [measure(size, batch) for batch in BATCHES]
            growth = [after / before for before, after in itertools.pairwise(times)]
            print(f"{size:<6}us" + "".join(f"{1e6 * t:>10,.1f}" for t in times))
            print(" " * 18 + "".join(f"{'x ' + format(one, '.1f'):>10}" for one in growth))


if __name__ == "__main__":
    main()

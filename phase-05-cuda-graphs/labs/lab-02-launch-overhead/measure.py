"""What it costs to start something on your own machine: an exploration, nothing is graded on it.

    python measure.py

numpy has no launch, but each call has the same two parts: a fixed cost, whatever the size of the arrays, and
a cost for each number. So 80 additions of short arrays are launch-bound, as Kim's step is. With torch
installed it does the same there, where Python's way to a kernel is longer. Each time is the best of many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[3]))

from course.learner.stubs import run_script

SIZES = (1, 100, 1_000, 10_000, 100_000)
CALLS = 80
"""As many as the kernels of the measurement with CUDA.jl that the README links."""


def best(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Seconds of the fastest call of those that fit into `seconds`, five at least."""
    times: list[float] = []
    call()
    while len(times) < 5 or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def report(title: str, adder: Callable[[int], Callable[[], object]]) -> None:
    """`adder(n)` gives a call that adds `CALLS` times two arrays of n numbers."""
    print(f"{title}, {CALLS} additions, microseconds each")
    fixed = 0.0
    for size in SIZES:
        each = best(adder(size)) / CALLS * 1e6
        fixed = fixed or each
        print(f"{size:9,} numbers  {each:9.2f}   {fixed / each:4.0%} of it is starting")


def in_numpy(size: int) -> Callable[[], object]:
    a, b, out = (np.zeros(size, np.float32) for _ in range(3))

    def call() -> None:
        for _ in range(CALLS):
            np.add(a, b, out=out)

    return call


def in_torch(size: int) -> Callable[[], object]:
    import torch

    torch.set_num_threads(1)
    a, b, out = (torch.zeros(size) for _ in range(3))

    def call() -> None:
        for _ in range(CALLS):
            torch.add(a, b, out=out)

    return call


def main() -> None:
    report("numpy", in_numpy)
    if find_spec("torch") is None:
        print("\ntorch is not installed")
        return
    print()
    report("torch on the CPU, one thread", in_torch)


if __name__ == "__main__":
    run_script(main)

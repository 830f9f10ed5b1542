"""Time the two decodes, and count the memory that each takes beside the cache.

    python measure.py [--impl solution|starter|FILE]

One request, 8 query heads on 2 KV heads of 64 numbers, float32, blocks of 16 in random order.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2]))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.utils.blas import blas_threads  # noqa: E402

LENGTHS = (256, 4096, 65_536)
BLOCK_SIZE, NUM_KV_HEADS, GROUP, HEAD_SIZE = 16, 2, 4, 64


def best_milliseconds(call: Callable[[], object]) -> float:
    """Processor time of the fastest of five calls, after one to warm up."""
    call()
    times = []
    for _ in range(5):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that one call had at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def arguments(length: int) -> tuple[Any, ...]:
    """A request of `length` tokens in a cache of its own."""
    rng = np.random.default_rng(length)
    num_blocks = length // BLOCK_SIZE
    shape = (num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE)
    caches = [rng.standard_normal(shape, np.float32) for _ in "KV"]
    query = rng.standard_normal((1, NUM_KV_HEADS * GROUP, HEAD_SIZE), np.float32)
    table = rng.permutation(num_blocks).astype(np.int32)[None]
    return query, *caches, table, np.array([length], np.int32), HEAD_SIZE**-0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Two ways to decode, timed.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    choice = parser.parse_args().impl or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    lab = load_module(path, "lab_02_04_for_scripts")
    print(
        f"{'tokens':>8}{'K and V':>12}{'gather':>12}{'beside it':>12}{'one pass':>12}{'beside it':>12}"
    )
    with blas_threads(1):
        for length in LENGTHS:
            case = arguments(length)
            line = f"{length:8,}{2 * case[1].nbytes / 1024:8,.0f} KiB"
            for decode in (lab.paged_decode, lab.paged_decode_one_pass):
                milliseconds = best_milliseconds(lambda: decode(*case))  # noqa: B023
                peak = peak_bytes(lambda: decode(*case))  # noqa: B023
                line += f"{milliseconds:9.2f} ms{peak / 1024:8,.0f} KiB"
            print(line)


if __name__ == "__main__":
    run_script(main)

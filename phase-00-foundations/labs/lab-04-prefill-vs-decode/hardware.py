"""Given: the GPUs of gpus.json, this CPU as measured, and the lab's file that the scripts use."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2]))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script as run  # noqa: E402, F401
from mini_vllm.utils.blas import blas_threads, get_blas_threads  # noqa: E402

# On one thread the processor's time is the time of a quiet machine, however busy this one is. A BLAS
# whose threads cannot be counted is timed by the clock on the wall.
clock = time.perf_counter if get_blas_threads() is None else time.process_time


def load_lab(choice: str | None) -> ModuleType:
    """`starter.py` or `solution.py` beside this file, or any other path.

    Without a choice LAB_IMPL decides, and without that it is the solution, as in every lab's scripts.
    """
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_00_04_for_scripts")


def load_sheets() -> list[dict[str, Any]]:
    """What the datasheets print, one entry a GPU."""
    sheets: list[dict[str, Any]] = json.loads((HERE / "gpus.json").read_text(encoding="utf-8"))
    return sheets


def best_time(call: Callable[[], object], seconds: float = 1.0) -> float:
    """Seconds of the fastest of the calls that fit into `seconds`, on one core.

    Five at least, after one to warm up.
    """
    with blas_threads(1):
        call()
        times: list[float] = []
        while len(times) < 5 or sum(times) < seconds:
            start = clock()
            call()
            times.append(clock() - start)
    return min(times)


def measure_bandwidth(mebibytes: int = 256) -> float:
    """Bytes/s at which numpy reads a large float32 matrix that it multiplies with a vector.

    A product of matrix and vector uses each number once: 2 FLOP for 4 bytes, far left of any ridge.
    """
    matrix = np.ones((mebibytes * 64, 4096), np.float32)
    vector, out = np.ones(4096, np.float32), np.empty(len(matrix), np.float32)
    return matrix.nbytes / best_time(lambda: np.matmul(matrix, vector, out=out))


def measure_flops(size: int = 1536) -> float:
    """FLOP/s of numpy's float32 matrix product: `2 * size**3` of them on `3 * size**2` numbers."""
    a, b = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
    out = np.empty_like(a)
    return 2 * size**3 / best_time(lambda: np.matmul(a, b, out=out))

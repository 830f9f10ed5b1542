"""How many threads BLAS may use in a matrix product, and what this machine's BLAS is good at.

The shipped model's products are small, 10 to 100 microseconds each, and wait until all of BLAS's threads have
run. On an idle machine with two cores a second thread took one of 64 rows by 128 by 768 from 102 to 66
microseconds in the median. Where other processes want the cores too it is ruinous: beside five
others, `LLMEngine` made 0.35 times the tokens a second at 1 request with two threads, 0.21 times at 16
and 0.10 times at 64. So the engine gives BLAS one thread, and shares larger products itself (`threads.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import numpy  # noqa: F401 - its BLAS must be loaded before the controller looks for it
from threadpoolctl import OpenBLASController, ThreadpoolController

_lock = threading.Lock()

SMALL_HIDDEN_SIZE = 1024
"""Below this width torch has one thread on the host, too."""


@cache
def _controller() -> ThreadpoolController:
    """The BLAS libraries of this process; made once, as looking for them takes a millisecond."""
    return ThreadpoolController().select(user_api="blas")


def get_blas_threads() -> int | None:
    """Threads of the first BLAS library; None where there is none that can be told (Accelerate)."""
    libraries = _controller().info()
    return int(libraries[0]["num_threads"]) if libraries else None


def has_chosen_threads() -> bool:
    """Whether the user has set the number of BLAS threads from outside."""
    return any(name in os.environ for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))


def has_small_matrix_kernels() -> bool:
    """Whether a product of a few rows costs little more than its arithmetic.

    OpenBLAS copies both matrices into another order before it multiplies. With few rows the copying is
    most of the work, and only its AVX-512 kernels can leave it out (OpenBLAS's pull request 3335, "GEMM
    optimization for small matrix"). True as well where there is no OpenBLAS: that was not measured.
    """
    libraries = _controller().info()
    if not libraries or libraries[0]["internal_api"] != "openblas":
        return True
    return libraries[0].get("architecture") in ("SkylakeX", "Cooperlake", "SapphireRapids")


def faster_core_type() -> str | None:
    """What to put into `OPENBLAS_CORETYPE` before Python starts, for kernels as wide as its vectors.

    OpenBLAS knows processors by name. One that is newer than the library gets AVX2 kernels though it may
    have AVX-512, which vLLM's CPU backend uses wherever it is. None: the kernels fit, or cannot be told.
    """
    libraries = _controller().info()
    if not libraries or libraries[0].get("architecture") not in ("Haswell", "Zen"):
        return None
    has = import_module("numpy._core._multiarray_umath").__cpu_features__
    needs = ("AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL")
    return "SkylakeX" if all(has.get(name) for name in needs) else None


def _set_blas_threads(counts: Sequence[int]) -> None:
    """One number for each library of `_controller`, whichever thread asks.

    From threadpoolctl 3.8 on only the first thread that has set a number of OpenBLAS threads may set another,
    until it gives that up; what other threads set is silently passed over.
    """
    give_up = getattr(OpenBLASController, "clear_controlling_thread", None)
    with _lock:
        for library, count in zip(_controller().lib_controllers, counts, strict=True):
            if give_up is not None:
                give_up(force=True)
            library.set_num_threads(count)
        if give_up is not None:
            give_up(force=True)


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let matrix products use `count` threads, for the whole process, until the block ends.

    Does nothing where no BLAS can be told. It costs some microseconds. Blocks of several threads that overlap
    put back what they have found, in whichever order they end.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"the number of BLAS threads must be at least 1, got {count}")
    before = [library.num_threads for library in _controller().lib_controllers]
    _set_blas_threads([count] * len(before))
    try:
        yield
    finally:
        _set_blas_threads(before)

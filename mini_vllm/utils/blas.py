"""How many threads a matrix product may use, and what this machine's BLAS is good at.

The products here are small, 10 to 100 microseconds each, and wait until all of their threads have run.
On an idle machine with two cores a second thread took one of 64 rows by 128 by 768 from 102 to 66
microseconds in the median. Where other processes want the cores too it is ruinous: beside five
others, `LLMEngine` made 0.35 times the tokens a second at 1 request with two threads, 0.21 times at 16
and 0.10 times at 64.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

import numpy  # noqa: F401 - its BLAS must be loaded before the controller looks for it
from threadpoolctl import ThreadpoolController

SMALL_HIDDEN_SIZE = 1024
"""Below this width one thread computes the matrix products."""


@cache
def _controller() -> ThreadpoolController:
    """The BLAS libraries of this process; made once, as looking for them takes a millisecond."""
    return ThreadpoolController().select(user_api="blas")


def get_blas_threads() -> int | None:
    """Threads of the first BLAS library; None where there is none that can be told (Accelerate)."""
    libraries = _controller().info()
    return int(libraries[0]["num_threads"]) if libraries else None


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


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Let matrix products use `count` threads, for the whole process, until the block ends.

    Does nothing where no BLAS can be told. It costs some microseconds.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"the number of BLAS threads must be at least 1, got {count}")
    limit: AbstractContextManager[object] = _controller().limit(limits=count)
    return limit

"""One setting of the BLAS library that numpy carries: how many threads a matrix product may use.

The products here are small, 10 to 100 microseconds each. On a machine with two cores, a second
thread took one of 64 rows by 128 by 768 from 102 to 66 microseconds in the median; but while other
processes wanted the cores too, from 0.2 to 16 milliseconds at the 95th percentile, as each product
waits until both of its threads have run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

# numpy's wheels rename OpenBLAS's symbols; builds against a system library keep them.
_PREFIXES = ("scipy_openblas_", "openblas_")
_SUFFIXES = ("64_", "")


@cache
def _functions() -> tuple[Any, Any] | None:
    """OpenBLAS's ``get_num_threads`` and ``set_num_threads``, or None where numpy has another
    BLAS.
    """
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
    for path in (path for folder in folders for path in sorted(folder.glob("*openblas*"))):
        try:
            library = ctypes.CDLL(str(path))  # already loaded by numpy: the same instance
        except OSError:
            continue
        for name in (f"{p}{{}}_num_threads{s}" for p in _PREFIXES for s in _SUFFIXES):
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


def get_blas_threads() -> int | None:
    """Threads of numpy's OpenBLAS; None where numpy uses another BLAS."""
    functions = _functions()
    return None if functions is None else int(functions[0]())


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let matrix products use `count` threads, for the whole process, until the block ends.

    Does nothing where numpy has a BLAS other than OpenBLAS (Accelerate, MKL). It costs two
    microseconds.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"the number of BLAS threads must be at least 1, got {count}")
    functions = _functions()
    if functions is None:
        yield
        return
    get, set_ = functions
    before = get()
    set_(count)
    try:
        yield
    finally:
        set_(before)

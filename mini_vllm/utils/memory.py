"""How much memory there is for this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


def machine_memory() -> int:
    """Bytes that this process can have at most: the machine's, its container's, or its own limit."""
    limits = [2**62]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # no cgroup, or "max"
        limits.append(int(_CGROUP.read_text(encoding="ascii")))
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    return min(limit for limit in limits if limit > 0)


def available_memory() -> int:
    """Bytes that can be had now without swapping: on Linux without what other processes use."""
    there = machine_memory()
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        there = min(there, 1024 * int(line.split()[1]))
    return there


def allocate_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """`np.zeros`. Raises MemoryError where there is no room; numpy says ValueError past 2**63 bytes."""
    try:
        return np.zeros(shape, dtype)
    except ValueError as error:
        raise MemoryError(str(error)) from error

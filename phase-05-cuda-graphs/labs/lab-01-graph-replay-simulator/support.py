"""What the tests of lab 05-01 share: small lists of kernels, and steps of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode, GraphPool, Kernel

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE

# y = ((2 x) ^ 2 + 1) * 3, and the square stays outside of graphs. Names are used again, as in the engine.
KERNELS = [
    Kernel("double", lambda x: 2 * x, ("x",), "y", 2),
    Kernel("copy", lambda y: y, ("y",), "z", 2),
    Kernel("square", lambda z: z * z, ("z",), "y", 2, splitting=True),
    Kernel("more", lambda y: y + 1, ("y",), "y", 2),
    Kernel("triple", lambda y: 3 * y, ("y",), "y", 2),
]


def right(x: float) -> float:
    """What KERNELS make of a number."""
    return ((2 * x) ** 2 + 1) * 3


def rows(n: int, value: float = 1.0) -> Any:
    return np.full((n, 2), value, np.float32)


def shape(n: int, num_reqs: int | None = None) -> BatchDescriptor:
    return BatchDescriptor(n, num_reqs)


def runner(
    lab: Any, mode: CUDAGraphMode, kernels: Any = KERNELS, pool: GraphPool | None = None
) -> Any:
    """The lab's runner of this mode over the kernels, and the lab's counter."""
    counter, pool = lab.LaunchCounter(), pool or GraphPool()
    if mode is PIECEWISE:
        return lab.PiecewiseGraphRunner(kernels, counter, pool), counter
    return lab.GraphRunner(kernels, mode, counter, pool), counter


def launches_of(counter: Any, step: Callable[..., object], *args: Any) -> int:
    """How many launches `step(*args)` takes."""
    before: int = counter.launches
    step(*args)
    return int(counter.launches) - before


def told(error: BaseException | None, *words: str) -> bool:
    """Whether it is a RuntimeError whose message has the words."""
    return isinstance(error, RuntimeError) and all(word in str(error) for word in words)


def caught(step: Callable[..., object], *args: Any) -> BaseException | None:
    """What `step(*args)` raises."""
    try:
        step(*args)
    except Exception as error:  # whatever it is, a message is to say it
        return error
    return None

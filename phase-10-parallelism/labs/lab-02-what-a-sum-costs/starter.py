"""Lab 10-02: what a sum over ranks costs. Your work: every NotImplementedError.

n is the number of ranks, at least 2.
"""

from __future__ import annotations

import math  # noqa: F401
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from mini_vllm.sim import Link

Array = np.ndarray[Any, np.dtype[np.float32]]


class Way(NamedTuple):
    """Given: what a collective sends.

    Attributes:
        steps: one after the other. In a step all ranks send and receive at the same time.
        payloads: how much one rank sends in all, in arrays: 1.5 is one and a half times its own array.
    """

    steps: int
    payloads: float


def predictions() -> dict[str, Any]:
    """Your answers to the README's questions, under the names given there."""
    raise NotImplementedError


# ---- message by message --------------------------------------------------------------------------


def one_shot(arrays: list[Array], wire: Any) -> list[Array]:
    """The sum on each rank, after one step in which each sends its whole array to every other rank.

    Each rank adds its own array and what has arrived, in the order of the ranks, 0 first, so that all have
    the same bits. Each sum is an array of its own.

    Args:
        arrays: by rank, flat, of one length; they stay as they are.
        wire: `wire.step({(source, target): array, ...})` sends all these messages at once. It returns what
            has arrived, copies, under the same keys, and counts a step.
    """
    raise NotImplementedError


def ring(arrays: list[Array], wire: Any) -> list[Array]:
    """The sum on each rank, where a rank sends to its right neighbour alone: rank r to rank (r + 1) % n.

    Each array is cut into n equal parts, and a message is one part.
    n - 1 steps of reduce-scatter: a rank passes a part on, and adds the part that arrives to its own. Then
    each rank has one part of the sum. n - 1 steps of all-gather: the finished parts go around.
    Which part a rank sends first is up to you; the README shows one schedule.

    Args:
        arrays: as above; their length is a multiple of n.
    """
    raise NotImplementedError


# ---- what it costs -------------------------------------------------------------------------------


def one_shot_way(n: int) -> Way:
    """What your `one_shot` sends."""
    raise NotImplementedError


def ring_way(n: int) -> Way:
    """What your `ring` sends."""
    raise NotImplementedError


def gather_way(n: int) -> Way:
    """What an all-gather around the ring sends. Each rank begins with an array of its own, the payload, and
    at the end has those of all."""
    raise NotImplementedError


def seconds(link: Link, way: Way, nbytes: float) -> float:
    """What it takes for payloads of so many bytes.

    Each step costs `link.latency_s` seconds, and what a rank sends goes at `link.bandwidth` bytes per second.
    """
    raise NotImplementedError


def crossing(link: Link, n: int) -> float:
    """The decision: a sum of fewer bytes than this is faster in one shot than around the ring, a larger one
    is not. `math.inf` where one shot is never slower."""
    raise NotImplementedError


def step_seconds(
    link: Link, n: int, ledger: Counter[tuple[str, tuple[int, ...], int]]
) -> dict[str, float]:
    """What one rank's calls of a step take, one after the other, under "all_reduce" and "all_gather".

    A sum goes the way that is faster, an all-gather around the ring.

    Args:
        ledger: how often, by kind of call, shape and bytes of the rank's own array. Either kind may be
            missing; it takes 0.0 then.
    """
    raise NotImplementedError

"""What ranks say to each other, and a ledger of it.

Mirrors `vllm/distributed/communication_op.py` and
`vllm/distributed/device_communicators/base_device_communicator.py:118 DeviceCommunicatorBase`. Upstream a
model's layers call functions that look their group up; here a rank's model is given its communicator.

Left out: all-to-all, groups inside the world.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RankDiedError(RuntimeError):
    """A rank waits for one that has ended."""


class Ledger:
    """What a rank has put on the wire: each call with the shape of its own array.

    Attributes:
        calls: how often, by kind of call, shape and bytes.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, tuple[int, ...], int]] = Counter()

    def record(self, kind: str, array: Any) -> None:
        self.calls[kind, tuple(array.shape), array.nbytes] += 1

    def count(self, kind: str) -> int:
        """Calls of a kind: `all_reduce`, `all_gather`."""
        return sum(n for (k, _, _), n in self.calls.items() if k == kind)

    def nbytes(self, kind: str) -> int:
        """Bytes of the arrays that went into them."""
        return sum(n * nbytes for (k, _, nbytes), n in self.calls.items() if k == kind)


class Communicator(ABC):
    """The calls that all ranks make together, in the same order.

    Attributes:
        rank: this one's number, from 0.
        world_size: how many there are.
        ledger: what this one has said.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.ledger = Ledger()

    def all_reduce(self, array: Array) -> Array:
        """The sum over the ranks, the same bits on each: all of them add in the order of their numbers.

        Source: `vllm/distributed/communication_op.py:12 tensor_model_parallel_all_reduce`.
        """
        if self.world_size == 1:
            return array
        self.ledger.record("all_reduce", array)
        first, *others = self.exchange(array)
        total: Array = first.copy()
        for other in others:
            total += other
        return total

    def all_gather(self, array: Array, axis: int = -1) -> Array:
        """The ranks' arrays, side by side in the order of their numbers
        (`vllm/distributed/communication_op.py:17 tensor_model_parallel_all_gather`)."""
        if self.world_size == 1:
            return array
        self.ledger.record("all_gather", array)
        return np.concatenate(self.exchange(array), axis)

    def all_gatherv(self, array: Array, sizes: Sequence[int]) -> Array:
        """The ranks' rows, one rank's behind another's; rank i has `sizes[i]` of them
        (`vllm/distributed/device_communicators/cuda_communicator.py:413 CudaCommunicator.all_gatherv`)."""
        if self.world_size == 1:
            return array
        self.ledger.record("all_gatherv", array)
        padded = np.zeros((max(sizes), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        arrays = self.exchange(padded)
        return np.concatenate([rows[:size] for rows, size in zip(arrays, sizes, strict=True)])

    def reduce_scatterv(self, array: Array, sizes: Sequence[int]) -> Array:
        """This rank's rows of the sum over the ranks: `sizes[i]` are rank i's, behind those before it
        (`vllm/distributed/device_communicators/cuda_communicator.py:325 CudaCommunicator.reduce_scatterv`).
        """
        if self.world_size == 1:
            return array
        self.ledger.record("reduce_scatterv", array)
        start = sum(sizes[: self.rank])
        first, *others = [a[start : start + sizes[self.rank]] for a in self.exchange(array)]
        total: Array = first.copy()
        for other in others:
            total += other
        return total

    @abstractmethod
    def exchange(self, array: Array) -> list[Array]:
        """Every rank's array, in the order of their numbers. All have one shape and dtype.

        Raises RankDiedError where one that is waited for is gone.
        """

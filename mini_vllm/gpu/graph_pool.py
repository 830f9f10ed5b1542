"""The memory of recorded graphs on a CPU: a pool that hands out addresses as a GPU's does.

What a capture allocates comes out of the pool of its graph, and what is freed during the capture is handed
out again, in this capture or in the next one of the same pool. So graphs of one pool write over each
other's memory when they are replayed, as they do on a GPU (`torch.cuda.graph`, "pool"). Here that can be
seen: a block knows whether its numbers may be read, and memory whose numbers may not is filled with NaN.

Used by `graph_standin.py`. On a GPU none of this runs: there PyTorch's caching allocator keeps the pools.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 512
"""Bytes that a block is rounded up to, as by PyTorch's caching allocator (`kMinBlockSize`)."""
SEGMENT_BYTES = 2 << 20
"""A pool grows by pieces of this size or more, as PyTorch's (`kSmallBuffer`); a block lies in one piece."""
POISON = 0xFF
"""Each byte of memory that must not be read: NaN in every float format, -1 in every signed integer."""

Handle = tuple[int, int]


def round_up(size: int, unit: int) -> int:
    """`size` or the next multiple of `unit`."""
    return -(-size // unit) * unit


@dataclass(eq=False)
class Block:
    """Memory of one tensor that was made during a capture.

    Attributes:
        start: its address.
        size: bytes, a multiple of `ALIGNMENT`.
        graph: number of the graph in whose capture it was made.
        alive: somebody still holds a tensor on it.
        unreadable: why its numbers must not be read; empty where they may.
    """

    start: int
    size: int
    graph: int
    alive: bool = True
    unreadable: str = "captured, and never replayed since"


@dataclass(eq=False)
class Segment:
    """One piece of a pool's memory. `free` holds `(offset, size)` in order, neighbours joined."""

    memory: NDArray[np.uint8]
    free: list[tuple[int, int]] = field(default_factory=list)

    @property
    def start(self) -> int:
        return int(self.memory.ctypes.data)

    def take(self, size: int) -> int | None:
        """Offset of the smallest free piece that has room; None if none has."""
        fitting = [(length, offset) for offset, length in self.free if length >= size]
        if not fitting:
            return None
        length, offset = min(fitting)
        at = self.free.index((offset, length))
        self.free[at : at + 1] = [(offset + size, length - size)] if length > size else []
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a piece, and join it to its neighbours."""
        at = bisect.bisect(self.free, (offset, size))
        self.free.insert(at, (offset, size))
        for i in (at, at - 1):  # with the one behind, then with the one before
            if 0 <= i < len(self.free) - 1 and sum(self.free[i]) == self.free[i + 1][0]:
                joined = (self.free[i][0], self.free[i][1] + self.free[i + 1][1])
                self.free[i : i + 2] = [joined]


class MemPool:
    """Memory shared by the graphs that were captured with one handle.

    Attributes:
        segment_bytes: least growth; a class attribute, so that a test with a small model may have small
            segments.
    """

    segment_bytes = SEGMENT_BYTES
    _by_handle: weakref.WeakValueDictionary[Handle, MemPool] = weakref.WeakValueDictionary()
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.blocks: list[Block] = []  # alive now, or an output that some graph still writes

    @classmethod
    def new_handle(cls) -> Handle:
        """A name for a pool that does not exist before the first capture with it."""
        return (0, next(cls._numbers))

    @classmethod
    def of(cls, handle: Handle) -> MemPool:
        """The pool of that name; made, where no graph keeps one alive."""
        pool = cls._by_handle.get(handle)
        if pool is None:
            pool = cls._by_handle[handle] = cls()
        return pool

    @classmethod
    def everywhere(cls) -> list[MemPool]:
        """All pools that some graph keeps alive."""
        return list(cls._by_handle.values())

    def reserved_bytes(self) -> int:
        """What the pool has taken from the device. It never gives anything back."""
        return sum(len(segment.memory) for segment in self.segments)

    def allocate(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, graph: int
    ) -> tuple[Tensor, Block, Tensor]:
        """A tensor for the code that is being captured, its block, and the address for the recording.

        The first tensor owns the block: when it and all its views are gone, the block is free again. The
        second reads and writes the same bytes and owns nothing, as a graph does.
        """
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        nbytes = max(span, 1) * dtype.itemsize
        size = round_up(nbytes, ALIGNMENT)
        segment, offset = self._find(size)
        memory = segment.memory[offset : offset + nbytes]
        memory[:] = POISON
        block = Block(segment.start + offset, size, graph)
        self.blocks.append(block)
        owned = segment.memory[
            offset : offset + nbytes
        ]  # an object of its own: its end is the block's
        weakref.finalize(owned, self._release, segment, offset, block)
        tensors = [torch.from_numpy(part).view(dtype) for part in (owned, memory)]
        tensor, address = (torch.as_strided(t, tuple(shape), tuple(stride), 0) for t in tensors)
        return tensor, block, address

    def _find(self, size: int) -> tuple[Segment, int]:
        for segment in self.segments:
            offset = segment.take(size)
            if offset is not None:
                return segment, offset
        length = round_up(size, self.segment_bytes)
        segment = Segment(np.full(length, POISON, np.uint8), [(0, length)])
        self.segments.append(segment)
        offset = segment.take(size)
        assert offset is not None
        return segment, offset

    def _release(self, segment: Segment, offset: int, block: Block) -> None:
        block.alive = False
        segment.give(offset, block.size)

    def block_at(self, address: int) -> Block | None:
        """The block that holds this address: of several graphs' outputs the one that may be read."""
        found = [b for b in self.blocks if b.start <= address < b.start + b.size]
        found.sort(key=lambda b: (b.alive, not b.unreadable))
        return found[-1] if found else None

    def poison(self, spared: Sequence[Block]) -> None:
        """Fill everything with `POISON` but the blocks in `spared`."""
        kept = sorted((b.start, b.size) for b in spared)
        for segment in self.segments:
            at, end = segment.start, segment.start + len(segment.memory)
            for start, size in kept:
                if segment.start <= start < end:
                    segment.memory[at - segment.start : start - segment.start] = POISON
                    at = start + size
            segment.memory[at - segment.start :] = POISON

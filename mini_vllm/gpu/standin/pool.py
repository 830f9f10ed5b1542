"""The memory of recorded graphs on a CPU: a pool that hands out addresses as a GPU's does.

What a capture allocates comes out of the pool of its graph, and what is freed during the capture is handed
out again, in this capture or in the next one of the same pool. So graphs of one pool write over each
other's memory when they are replayed, as they do on a GPU (`torch.cuda.graph`, "pool"). Here that can be
seen: a block knows whether its numbers may be read, and memory whose numbers may not is filled with NaN.

On a GPU none of this runs: there PyTorch's caching allocator keeps the pools.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import ClassVar

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
        memory: uint8 `[size]`, its bytes; owns nothing.
        graph: number of the graph in whose capture it was made.
        alive: a tensor on it is still held.
    """

    start: int
    memory: Tensor
    graph: int
    alive: bool = True

    def __post_init__(self) -> None:
        self.size = len(self.memory)
        self.end = self.start + self.size

    def like(self, tensor: Tensor) -> Tensor:
        """The same shape on the same bytes, without keeping the block alive. The tensor lies in it."""
        flat = self.memory[tensor.data_ptr() - self.start :]
        flat = flat[: len(flat) // tensor.itemsize * tensor.itemsize].view(tensor.dtype)
        return torch.as_strided(flat, tuple(tensor.shape), tensor.stride(), flat.storage_offset())


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
    _by_handle: ClassVar[weakref.WeakValueDictionary[Handle, MemPool]] = (
        weakref.WeakValueDictionary()
    )
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.blocks: list[Block] = []  # alive now, or written last by the graph that made it
        self.held: dict[int, Block] = {}  # those that are alive, by address
        self.replayed: dict[
            int, AbstractSet[Block]
        ] = {}  # by graph, the latest last: what it leaves alone

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
        """All pools that some graph keeps."""
        return list(cls._by_handle.values())

    @classmethod
    def holding(cls, tensor: Tensor) -> tuple[MemPool, Block] | None:
        """The pool and the block that a tensor lies in; None where its memory is no graph's.

        Of several blocks that share the bytes it is the one that is held, else the one that fits best, else
        the one that may be read.
        """
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        for pool in cls._by_handle.values():
            if start in pool.held:
                return pool, pool.held[start]
            if any(s.start <= start < s.start + len(s.memory) for s in pool.segments):
                found = [b for b in pool.blocks if b.start <= start and end <= b.end]
                found.sort(key=lambda b: (b.alive, -b.size, not pool.unreadable(b)))
                if found:
                    return pool, found[-1]
        return None

    def reserved_bytes(self) -> int:
        """What the pool has taken from the device. It never gives anything back."""
        return sum(len(segment.memory) for segment in self.segments)

    def allocate(self, like: Tensor, graph: int) -> tuple[Tensor, Block]:
        """A tensor with the shape, strides and dtype of `like`, full of `POISON`, and its block.

        When the tensor and all its views are gone, the block is free again.
        """
        steps = zip(like.shape, like.stride(), strict=True)
        span = 1 + sum((n - 1) * step for n, step in steps) if like.numel() else 0
        nbytes = span * like.itemsize
        size = round_up(max(nbytes, 1), ALIGNMENT)
        segment, offset = self._take(size)
        memory = segment.memory[offset : offset + size]
        memory[:] = POISON
        block = Block(segment.start + offset, torch.from_numpy(memory), graph)
        self.blocks.append(block)
        self.held[block.start] = block
        owned = segment.memory[
            offset : offset + nbytes
        ]  # an object of its own: its end is the block's
        weakref.finalize(owned, self._release, segment, offset, block)
        flat = torch.from_numpy(owned).view(like.dtype)
        return torch.as_strided(flat, tuple(like.shape), like.stride(), 0), block

    def _take(self, size: int) -> tuple[Segment, int]:
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
        del self.held[block.start]

    def forget(self, blocks: Iterable[Block]) -> None:
        """Drop blocks that nothing holds: their graph is gone, or has written over them itself."""
        gone = set(blocks)
        self.blocks = [block for block in self.blocks if block.alive or block not in gone]

    def start_replay(
        self, graph: int, before: AbstractSet[Block], spared: AbstractSet[Block]
    ) -> None:
        """A graph is about to run, which shares no memory with `spared`; with all else it may.

        What it may write over is filled with `POISON`, also where this graph happens not to reach it. What
        it may read first, `before`, is left for now.
        """
        self.replayed.pop(graph, None)
        self.replayed[graph] = spared
        kept = sorted((block.start, block.end) for block in before)
        for segment in self.segments:
            at = 0
            for start, end in kept:
                if segment.start <= start < segment.start + len(segment.memory):
                    segment.memory[at : start - segment.start] = POISON
                    at = max(at, end - segment.start)
            segment.memory[at:] = POISON

    def unreadable(self, block: Block) -> str:
        """Why the block's numbers must not be read now; empty where they may."""
        for graph in reversed(self.replayed):
            if graph == block.graph:
                return ""
            if block not in self.replayed[graph]:
                return f"overwritten by the replay of graph {graph}"
        return "captured, and not replayed since"

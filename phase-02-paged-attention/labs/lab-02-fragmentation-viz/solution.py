"""Lab 02-02: two allocators for the KV cache, and what each of them wastes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Extent(NamedTuple):
    """Slots `start` to `start + size - 1`, in one piece."""

    start: int
    size: int


class Row(NamedTuple):
    """One line of the sweep."""

    block_size: int
    waste: float
    longest_table: int


def predictions() -> dict[str, float]:
    return {
        "admitted, reserved": 8,
        "admitted, blocks": 85,
        "share held, the model's maximum": 0.14,
        "waste of a last block": 7.5,
    }


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


class ContiguousAllocator:
    """One extent per request, large enough for the most tokens that it may come to have."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.extents: dict[str, Extent] = {}

    def need(self, num_tokens: int, at_most: int) -> int:
        return at_most

    def holes(self) -> list[Extent]:
        holes = []
        end = 0
        for start, size in sorted(self.extents.values()):
            if start > end:
                holes.append(Extent(end, start - end))
            end = start + size
        if end < self.num_slots:
            holes.append(Extent(end, self.num_slots - end))
        return holes

    def allocate(self, name: str, num_tokens: int, at_most: int) -> bool:
        for start, size in self.holes():
            if size >= at_most:
                self.extents[name] = Extent(start, at_most)
                return True
        return False

    def grow(self, name: str, num_tokens: int) -> bool:
        return num_tokens <= self.extents[name].size

    def release(self, name: str) -> None:
        del self.extents[name]

    def num_taken(self) -> int:
        return sum(size for _, size in self.extents.values())


class PagedAllocator:
    """Blocks of one size, handed out as the tokens come."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}

    def need(self, num_tokens: int, at_most: int) -> int:
        return blocks_for(num_tokens, self.block_size) * self.block_size

    def holes(self) -> list[Extent]:
        return [Extent(block * self.block_size, self.block_size) for block in sorted(self.free)]

    def allocate(self, name: str, num_tokens: int, at_most: int) -> bool:
        self.tables[name] = []
        if self.grow(name, num_tokens):
            return True
        del self.tables[name]
        return False

    def grow(self, name: str, num_tokens: int) -> bool:
        table = self.tables[name]
        missing = blocks_for(num_tokens, self.block_size) - len(table)
        if missing > len(self.free):
            return False
        table += [self.free.pop() for _ in range(missing)]
        return True

    def release(self, name: str) -> None:
        self.free += self.tables.pop(name)

    def num_taken(self) -> int:
        return self.block_size * sum(len(table) for table in self.tables.values())


Allocator: TypeAlias = ContiguousAllocator | PagedAllocator


def admit(allocator: Allocator, lengths: Iterable[int], at_most: int) -> int:
    admitted = 0
    for length in lengths:
        if not allocator.allocate(str(admitted), length, at_most):
            break
        admitted += 1
    return admitted


def wasted_slots(allocator: Allocator, held: Mapping[str, int]) -> int:
    return allocator.num_taken() - sum(held.values())


def unusable_room(holes: Sequence[Extent], size: int) -> int:
    return sum(hole.size for hole in holes if hole.size < size)


def is_stuck(holes: Sequence[Extent], size: int) -> bool:
    sizes = [hole.size for hole in holes]
    return max(sizes, default=0) < size <= sum(sizes)


def sweep(lengths: Sequence[int], block_sizes: Sequence[int]) -> list[Row]:
    rows = []
    for block_size in block_sizes:
        entries = [blocks_for(length, block_size) for length in lengths]
        slots = block_size * sum(entries)
        rows.append(Row(block_size, 1 - sum(lengths) / slots, max(entries)))
    return rows

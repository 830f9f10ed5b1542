"""Lab 02-02: two allocators for the KV cache, and their waste. Your work: every NotImplementedError.

Everything is counted in slots. A slot is room for the K and V of one token, in all layers. An allocator
moves no tokens: it only says whose a slot is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Extent(NamedTuple):
    """Slots `start` to `start + size - 1`, in one piece."""

    start: int
    size: int


class Row(NamedTuple):
    """One line of the sweep.

    Attributes:
        block_size: slots of a block.
        waste: share of the slots taken that hold no token, 0 to 1.
        longest_table: blocks of the longest request.
    """

    block_size: int
    waste: float
    longest_table: int


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, float]:
    """Your guesses at the four questions of the README, under the names that stand there.

    The first two are exact. The third may be off by 0.05, the fourth by 1.
    """
    raise NotImplementedError


# ---- one piece a request -------------------------------------------------------------------------


class ContiguousAllocator:
    """One extent per request, large enough for the most tokens that it may come to have.

    Attributes:
        num_slots: slots of the pool.
        extents: the extent of each request that is here.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.extents: dict[str, Extent] = {}

    def need(self, num_tokens: int, at_most: int) -> int:
        """Slots that `allocate` would take (given)."""
        return at_most

    def holes(self) -> list[Extent]:
        """The free extents, by address. Each is as large as it can be: no two touch, and none is empty."""
        raise NotImplementedError

    def allocate(self, name: str, num_tokens: int, at_most: int) -> bool:
        """Reserve room for a request that has `num_tokens` now and may come to have `at_most`.

        First fit: its extent begins where the first hole begins that is large enough.

        Returns:
            Whether there was such a hole. If not, nothing has changed.
        """
        raise NotImplementedError

    def grow(self, name: str, num_tokens: int) -> bool:
        """Whether the request's extent has room for `num_tokens` tokens. Nothing moves."""
        raise NotImplementedError

    def release(self, name: str) -> None:
        """The request has left."""
        raise NotImplementedError

    def num_taken(self) -> int:
        """Slots that belong to some request, used or not."""
        raise NotImplementedError


# ---- blocks --------------------------------------------------------------------------------------


def blocks_for(num_tokens: int, block_size: int) -> int:
    """The fewest blocks that hold `num_tokens` tokens."""
    raise NotImplementedError


class PagedAllocator:
    """Blocks of one size, handed out as the tokens come. Any free block is as good as any other.

    Attributes:
        block_size: slots of a block; block `b` has the slots from `b * block_size`.
        free: ids of the free blocks, in any order.
        tables: the block table of each request that is here: its blocks, in the order of its tokens.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}

    def need(self, num_tokens: int, at_most: int) -> int:
        """Slots that `allocate` would take (given, on your `blocks_for`)."""
        return blocks_for(num_tokens, self.block_size) * self.block_size

    def holes(self) -> list[Extent]:
        """The free blocks as extents, by address (given)."""
        return [Extent(block * self.block_size, self.block_size) for block in sorted(self.free)]

    def allocate(self, name: str, num_tokens: int, at_most: int) -> bool:
        """A block table for a new request, with blocks for the `num_tokens` that it has now.

        What it may become does not matter yet.

        Returns:
            Whether there were blocks enough. If not, nothing has changed.
        """
        raise NotImplementedError

    def grow(self, name: str, num_tokens: int) -> bool:
        """Make the request's table long enough for `num_tokens` tokens.

        The table keeps its blocks. Most calls need no new one: the last block has room.

        Returns:
            Whether there were blocks enough. If not, nothing has changed.
        """
        raise NotImplementedError

    def release(self, name: str) -> None:
        """The request has left; its blocks are free, and its table is gone."""
        raise NotImplementedError

    def num_taken(self) -> int:
        """Slots in the blocks of all tables, used or not."""
        raise NotImplementedError


Allocator: TypeAlias = ContiguousAllocator | PagedAllocator


# ---- what it comes to ----------------------------------------------------------------------------


def admit(allocator: Allocator, lengths: Iterable[int], at_most: int) -> int:
    """Admit a queue: first come, first served, until one does not fit. No request leaves.

    Args:
        allocator: the pool, empty; the names are up to you, a different one for each request.
        lengths: tokens of each request in the queue, the head first.
        at_most: what each of them may become.

    Returns:
        How many were admitted. No request overtakes the first that does not fit.
    """
    raise NotImplementedError


def wasted_slots(allocator: Allocator, held: Mapping[str, int]) -> int:
    """Slots that belong to a request and hold no token. A free slot is not wasted.

    Args:
        held: tokens in the cache of each request that the allocator has.
    """
    raise NotImplementedError


def unusable_room(holes: Sequence[Extent], size: int) -> int:
    """Free slots in holes that are too small for an extent of `size`."""
    raise NotImplementedError


def is_stuck(holes: Sequence[Extent], size: int) -> bool:
    """External fragmentation: room enough for `size` slots in all, and no hole that is large enough.

    It is a question about one extent. Blocks need not touch, so with them room enough in all is enough.
    """
    raise NotImplementedError


def sweep(lengths: Sequence[int], block_sizes: Sequence[int]) -> list[Row]:
    """What each block size costs if requests of these lengths lie in the cache side by side.

    Args:
        lengths: tokens of each request.

    Returns:
        A row for each block size, in the order given.
    """
    raise NotImplementedError

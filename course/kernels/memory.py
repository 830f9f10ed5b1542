"""Memory whose edges are watched: guards around every tensor, and a name for every address.

On a GPU an access outside of a tensor reads a neighbour's bytes, or kills the process, or shows nothing.
Triton's interpreter lets it pass. So each tensor of a case lies between two guards, and every address that
a kernel touches is looked up in the regions that it may touch.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

GUARD = 16384  # bytes on either side of a tensor
FILL = 0xFF  # of the guards: NaN in every float format, -1 as an integer
FAR = -1  # see `rows_of_wider`

Array = np.ndarray[Any, Any]


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, `GUARD` bytes of `FILL` before and after them."""
    size = tensor.numel() * tensor.element_size()
    memory = torch.full((size + 2 * GUARD,), FILL, dtype=torch.uint8)
    copy = memory[GUARD : GUARD + size].view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    return copy


def rows_of_wider(tensor: torch.Tensor, poison: float, gap: int = 16) -> torch.Tensor:
    """The same, as the first columns of a wider tensor: `gap` numbers of poison stand between its rows.
    `FAR`: so many that the last row's offset is no int32."""
    if gap == FAR:
        return spread(tensor, (1 << 31) // (len(tensor) - 1) + 64)
    between = torch.full((len(tensor), gap), poison, dtype=tensor.dtype)
    return guarded(torch.cat([tensor, between], 1))[:, : tensor.shape[1]]


def spread(tensor: torch.Tensor, stride: int) -> torch.Tensor:
    """The same along the first axis, `stride` elements from one index to the next where the system gives so
    much address space, for it is no more than that."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    with suppress(OSError):
        memory = mmap.mmap(-1, len(tensor) * stride * tensor.element_size(), flags=flags)
        view = torch.frombuffer(memory, dtype=tensor.dtype)
        return view.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)
    return guarded(tensor)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that `tensor` lies in, guards included."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


@dataclass(frozen=True)
class Region:
    """The addresses of one tensor.

    Of an input (`given`) exactly its elements, so that the gap between two rows of a view is outside. Of a
    tensor that the kernel's file made for itself all of its memory, because only that file knows the shape.
    """

    name: str
    low: int  # first address
    high: int  # first address behind it
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    itemsize: int
    given: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, given: bool) -> Region:
        if given:
            low = tensor.data_ptr()
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            high = low + (last + 1) * tensor.element_size()
        else:
            memory = tensor.untyped_storage()
            low, high = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return cls(name, low, high, shape, strides, tensor.element_size(), given)

    def place(self, addresses: Array) -> tuple[list[Array], Array]:
        """The index of each address, an array an axis; and which addresses start an element."""
        left, odd = np.divmod(addresses - self.low, self.itemsize)
        good = (addresses >= self.low) & (odd == 0)
        index: list[Array] = [np.zeros_like(left)] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda a: -self.strides[a]):
            if self.shape[axis] > 1:
                index[axis], left = np.divmod(left, self.strides[axis])
                good &= index[axis] < self.shape[axis]
        return index, good & (left == 0)

    def holds(self, addresses: Array, size: int) -> Array:
        """Which of the `size` bytes at `addresses` are this tensor's."""
        if self.given and size == self.itemsize:
            return self.place(addresses)[1]
        return (addresses >= self.low) & (addresses + size <= self.high)

    def label(self, address: int) -> str:
        """Where an address lies, in words: "key_cache[3, 0, 1, 5]"."""
        if address < self.low:
            return f"{self.low - address} bytes before {self.name}"
        if address >= self.high:
            far = (address - self.high) // self.itemsize + 1
            return f"{far} element{'s' if far > 1 else ''} behind the last of {self.name}"
        if not self.given:
            return f"{self.name}, element {(address - self.low) // self.itemsize}"
        index, good = self.place(np.array([address]))
        if not good[0]:
            return f"between the rows of {self.name}"
        return f"{self.name}[{', '.join(str(i[0]) for i in index)}]"


def sort_out(
    regions: list[Region], addresses: Array, size: int
) -> Iterator[tuple[Region | None, Array]]:
    """`addresses` by the region that holds them, each with a mask; the rest under None."""
    if not addresses.size:
        return
    low, high = int(addresses.min()), int(addresses.max())
    homeless = np.ones(addresses.shape, dtype=bool)
    for region in regions:
        if region.low <= high and low < region.high:
            held = region.holds(addresses, size) & homeless
            if held.any():
                homeless &= ~held
                yield region, held
            if not homeless.any():
                return
    yield None, homeless


def nearest(regions: Iterable[Region], address: int) -> tuple[Region, int]:
    """The region that an address outside of all of them most likely missed, and by how many bytes."""

    def distance(region: Region) -> int:
        return max(region.low - address, address - region.high + 1, 0)

    region = min(regions, key=distance)
    return region, distance(region)


def spread_both(keys: torch.Tensor, values: torch.Tensor, stride: int) -> tuple[torch.Tensor, ...]:
    """The two caches in one, block after block `stride` elements apart. What lies between is address space
    only. Raises OSError where the system does not give so much of it."""
    size = len(keys) * stride * keys.element_size()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=keys.dtype)
    shape, inner = keys.shape, keys[0].numel()
    strides = (stride, *keys.stride()[1:])
    both = memory.as_strided(shape, strides), memory.as_strided(shape, strides, inner)
    for view, tensor in zip(both, (keys, values), strict=True):
        view.copy_(tensor)
    return both

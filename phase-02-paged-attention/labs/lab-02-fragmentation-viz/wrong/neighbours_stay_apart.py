"""Two neighbours leave, and their holes stay two.

A list of holes to which every release adds one is the quick way, and after an hour the pool is a row of
small holes with nothing between them. Join the hole with those that end where it begins and begin where
it ends, or work the holes out from the extents each time.

Refused by `test_neighbouring_holes_are_one`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.ContiguousAllocator
Extent = solution.Extent


class ContiguousAllocator(Right):
    def holes(self) -> list[Any]:
        left = getattr(self, "left", [])
        whole = super().holes()
        cuts = sorted({cut for start, size in left for cut in (start, start + size)})
        found = []
        for start, size in whole:
            inner = [cut for cut in cuts if start < cut < start + size]
            ends = [start, *inner, start + size]
            found += [Extent(a, b - a) for a, b in pairwise(ends)]
        return found

    def release(self, name: str) -> None:
        self.left = [*getattr(self, "left", []), self.extents[name]]
        super().release(name)


solution.ContiguousAllocator = ContiguousAllocator


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

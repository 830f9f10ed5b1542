"""A request may grow up to the slot number where its extent ends.

The first extent of the pool ends at its size, so nobody notices. If Bo has 12 slots from 16 on, they end at
28, but 28 tokens would take slots 16 to 43. Compare tokens with the size, not with an address.

Refused by `test_nobody_leaves_his_extent`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class ContiguousAllocator(solution.ContiguousAllocator):
    def grow(self, name: str, num_tokens: int) -> bool:
        start, size = self.extents[name]
        return num_tokens <= start + size


solution.ContiguousAllocator = ContiguousAllocator


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

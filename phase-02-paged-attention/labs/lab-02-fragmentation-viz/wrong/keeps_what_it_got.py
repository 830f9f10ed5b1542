"""Blocks are taken one by one, and when they run out the refused request keeps what it has got.

It cannot use them, nobody else can, and two such requests can wait for each other for ever. Count first:
if there are not blocks enough, take none.

Refused by `test_all_or_nothing`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.PagedAllocator


class PagedAllocator(Right):
    def allocate(self, name: str, num_tokens: int, at_most: int) -> bool:
        self.tables[name] = []
        return self.grow(name, num_tokens)

    def grow(self, name: str, num_tokens: int) -> bool:
        table = self.tables[name]
        while len(table) < solution.blocks_for(num_tokens, self.block_size):
            if not self.free:
                return False
            table.append(self.free.pop())
        return True


solution.PagedAllocator = PagedAllocator


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""Every token gets a block, full or not.

`grow` is called for every token, and the last block usually has room: 3 blocks of 4 hold 12. Count the
blocks that the tokens need and take away those that are in the table.

Refused by `test_grow_takes_a_block_when_the_last_is_full`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.PagedAllocator


class PagedAllocator(Right):
    def grow(self, name: str, num_tokens: int) -> bool:
        table = self.tables[name]
        if table:
            missing = 1
        else:
            missing = solution.blocks_for(num_tokens, self.block_size)
        if missing > len(self.free):
            return False
        table += [self.free.pop() for _ in range(missing)]
        return True


solution.PagedAllocator = PagedAllocator


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

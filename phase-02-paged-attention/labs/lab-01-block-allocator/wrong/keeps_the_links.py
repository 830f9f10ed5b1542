"""A block that leaves the queue keeps its links.

Its neighbours have closed the gap, but the block still points at them, so nobody can tell that it is
not free, and a second remove() unlinks blocks that have moved on. Set both links to None.

Refused by `test_remove_of_a_block_that_is_not_free_is_refused`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.FreeKVCacheBlockQueue


class FreeKVCacheBlockQueue(Right):
    def remove(self, block: Any) -> None:
        if block.prev_free_block is None or block.next_free_block is None:
            raise RuntimeError(f"not free: {block}")
        block.prev_free_block.next_free_block = block.next_free_block
        block.next_free_block.prev_free_block = block.prev_free_block
        self.num_free_blocks -= 1


solution.FreeKVCacheBlockQueue = FreeKVCacheBlockQueue


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

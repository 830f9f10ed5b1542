"""get_new_blocks gives a published block away and leaves it in the index.

Whoever looks for the old contents finds the block, reads somebody else's K and V, and answers fluently
from a stranger's conversation. Evict before you give away.

Refused by `test_a_block_is_evicted_when_it_is_given_away`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.BlockPool


class BlockPool(Right):
    def get_new_blocks(self, num_blocks: int) -> Any:
        if num_blocks > self.free_block_queue.num_free_blocks:
            raise ValueError(f"Cannot get {num_blocks} free blocks")
        taken = self.free_block_queue.popleft_n(num_blocks)
        for block in taken:
            block.ref_cnt = 1
        return taken


solution.BlockPool = BlockPool


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

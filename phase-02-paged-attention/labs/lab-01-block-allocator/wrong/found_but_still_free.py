"""touch counts the new holder and leaves the block in the free queue.

It will come to the front one day and be given to somebody else, who writes into it while this one
reads: two users in one block. A block whose count goes from 0 to 1 leaves the queue.

Refused by `test_a_found_block_comes_back_to_life`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.BlockPool


class BlockPool(Right):
    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        unused = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and block.prev_free_block is None and not block.is_null:
                unused.append(block)
        self.free_block_queue.append_n(unused)


solution.BlockPool = BlockPool


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

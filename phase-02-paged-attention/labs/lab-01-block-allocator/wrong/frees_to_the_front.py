"""Freed blocks go to the front of the queue, like plates on a stack.

The next request then takes what was freed last and overwrites it at once, while blocks that nobody has
asked for in an hour stay. Free to the back: the queue is the order of eviction.

Refused by `test_freed_blocks_join_the_back_in_the_order_given`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.BlockPool


class BlockPool(Right):
    def free_blocks(self, ordered_blocks: Any) -> None:
        queue = self.free_block_queue
        unused = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and not block.is_null:
                unused.append(block)
        queue.append_n([*unused, *queue.popleft_n(queue.num_free_blocks)])


solution.BlockPool = BlockPool


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

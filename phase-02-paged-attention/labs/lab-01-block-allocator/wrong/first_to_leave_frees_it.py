"""A block goes back as soon as one of its holders leaves.

The others still read it. Count down, and only at zero is it free (I1).

Refused by `test_a_shared_block_stays_until_its_last_holder_goes`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.BlockPool


class BlockPool(Right):
    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            if block.ref_cnt > 0 and block.prev_free_block is None and not block.is_null:
                self.free_block_queue.append_n([block])
            block.ref_cnt -= 1


solution.BlockPool = BlockPool


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

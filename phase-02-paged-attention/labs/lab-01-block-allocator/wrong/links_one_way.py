"""append_n sets `next_free_block` and leaves the way back as it was.

A list that is linked twice is changed in four places: the old last block, the new one in both
directions, and the tail sentinel. Draw it with three blocks.

Refused by `test_append_n_keeps_the_order_behind_what_is_there`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.FreeKVCacheBlockQueue


class FreeKVCacheBlockQueue(Right):
    def append_n(self, blocks: Any) -> None:
        for block in blocks:
            last = self.fake_free_list_head
            while last.next_free_block is not self.fake_free_list_tail:
                last = last.next_free_block
            last.next_free_block = block
            block.prev_free_block = self.fake_free_list_head
            block.next_free_block = self.fake_free_list_tail
        self.num_free_blocks += len(blocks)


solution.FreeKVCacheBlockQueue = FreeKVCacheBlockQueue


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

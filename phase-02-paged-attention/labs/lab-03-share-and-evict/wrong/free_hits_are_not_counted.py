"""Blocks that were found count as if they cost nothing.

Those that somebody holds do. Those that are free leave the free queue, like new ones, and the pool is
asked for more than it has: it refuses in the middle of the grant, with the hits already taken.

Refused by `test_a_found_block_that_is_free_counts`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.KVCacheManager


class KVCacheManager(Right):
    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        full_sequence_must_fit: bool = False,
    ) -> Any:
        hits = [] if new_computed_blocks is None else new_computed_blocks.blocks
        free = [block for block in hits if block.ref_cnt == 0]
        pool = self.block_pool
        queue = pool.get_num_free_blocks
        pool.get_num_free_blocks = lambda: queue() + len(free)
        try:
            return super().allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                full_sequence_must_fit,
            )
        finally:
            del pool.get_num_free_blocks


solution.KVCacheManager = KVCacheManager


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

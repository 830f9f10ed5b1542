"""New blocks are taken first, and what was found is held afterwards.

A block that was found may stand at the front of the free queue. Taking evicts it and gives it to the
same request as a new block, so its table has one block twice. Touch first.

Refused by `test_found_blocks_are_held_before_new_ones_are_taken`.
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
        pool = self.block_pool
        late: list[Any] = []
        touch = pool.touch
        take = pool.get_new_blocks

        def taken(n: int) -> Any:
            blocks = take(n)
            touch(late)
            return blocks

        pool.touch, pool.get_new_blocks = late.extend, taken
        try:
            return super().allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                full_sequence_must_fit,
            )
        finally:
            del pool.touch, pool.get_new_blocks


solution.KVCacheManager = KVCacheManager


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

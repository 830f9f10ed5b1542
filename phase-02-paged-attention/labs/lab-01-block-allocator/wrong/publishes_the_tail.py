"""cache_full_blocks publishes one block more than are full.

The tail block holds fewer tokens than its hash stands for, and more will be written into it. Whoever
finds it reads slots that nobody has filled. Only full blocks have a hash (I3).

Refused by `test_publishing_takes_the_full_blocks_that_are_new`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.BlockPool


class BlockPool(Right):
    def cache_full_blocks(
        self, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int
    ) -> None:
        for i in range(num_cached_blocks, min(num_full_blocks + 1, len(blocks))):
            if i < len(request.block_hashes) and blocks[i].block_hash is None:
                blocks[i].block_hash = request.block_hashes[i]
                self.cached_block_hash_to_block.insert(request.block_hashes[i], blocks[i])


solution.BlockPool = BlockPool


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

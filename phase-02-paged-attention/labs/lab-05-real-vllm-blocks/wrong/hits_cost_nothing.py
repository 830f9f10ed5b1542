"""Whatever the prefix cache found is taken for a gift.

A hit that nobody holds lies in the free queue. Whoever takes it takes it from there, so it is needed like
a new block. That is how a request that found 3 blocks and needs 3 more waits while 4 are free.

Refused by `test_hits_that_are_free_are_needed_too`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def blocks_needed(num_tokens: int, block_size: int, hit_blocks: int, free_hit_blocks: int) -> int:
    return int(solution.blocks_of(num_tokens, block_size) - hit_blocks)


solution.blocks_needed = blocks_needed


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

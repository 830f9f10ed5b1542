"""The number of blocks is rounded down, so the tokens of the last block have no place.

10 // 4 is 2, and 2 blocks hold 8 tokens. A block that is begun is a block: round up, with whole numbers
(`-(-a // b)`), because a float cannot tell large numbers apart.

Refused by `test_blocks_for_rounds_up`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def blocks_for(num_tokens: int, block_size: int) -> int:
    return max(num_tokens // block_size, min(num_tokens, 1))


solution.blocks_for = blocks_for


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

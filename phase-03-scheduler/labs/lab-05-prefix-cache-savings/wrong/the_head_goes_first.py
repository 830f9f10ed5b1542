"""The prefix is lost as soon as others need one of its blocks.

It would be if a table were freed from its head. It is freed from its tail, so the last block of the
prefix is taken first, and what is left is a beginning, which can be found.

Refused by `test_blocks_left`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def blocks_left(prefix_blocks: int, usable_blocks: int, others: int) -> int:
    return prefix_blocks if prefix_blocks + others <= usable_blocks else 0


solution.blocks_left = blocks_left


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

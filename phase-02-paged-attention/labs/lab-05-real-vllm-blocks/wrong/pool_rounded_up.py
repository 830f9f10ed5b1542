"""The last block, which the memory only begins, is counted.

A request takes the blocks that it begins, and rounds up. A pool has the blocks that it holds whole, and
rounds down; the last one would end behind the end of the memory.

Refused by `test_only_whole_blocks_are_in_the_pool`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def num_gpu_blocks(memory: int, num_layers: int, page: int, override: int | None = None) -> int:
    return -(-memory // (page * num_layers)) if override is None else override


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

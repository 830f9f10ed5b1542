"""A block that is begun is found.

A block that is not full is not published, because its owner still writes to it. Round down.

Refused by `test_found`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def found(prompt_tokens: int, cached_prefix_tokens: int, block_size: int) -> int:
    blocks = -(-cached_prefix_tokens // block_size)
    return min(blocks, (prompt_tokens - 1) // block_size) * block_size


solution.found = found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

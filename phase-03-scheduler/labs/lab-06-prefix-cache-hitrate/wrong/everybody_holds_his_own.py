"""Each request's blocks are added up.

A block that two hold is one block of the pool. Sharing is why the same people need a fifth of
the cache.

Refused by `test_usage_counts_a_shared_block_once`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def usage(num_tokens: Any, found: Any, num_gpu_blocks: int, block_size: int) -> float:
    nothing = [0] * len(num_tokens)
    return float(solution.usage(num_tokens, nothing, num_gpu_blocks, block_size))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

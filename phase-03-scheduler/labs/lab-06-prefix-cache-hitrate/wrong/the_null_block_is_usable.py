"""The gauge divides by all blocks.

One of them is the null block, which nobody gets, and this gauge leaves it out.

Refused by `test_usage_counts_a_shared_block_once`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def usage(num_tokens: Any, found: Any, num_gpu_blocks: int, block_size: int) -> float:
    return float(solution.usage(num_tokens, found, num_gpu_blocks + 1, block_size))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

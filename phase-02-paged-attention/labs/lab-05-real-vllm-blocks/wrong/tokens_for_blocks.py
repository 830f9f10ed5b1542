"""The concurrency is computed in tokens: all places over max_model_len.

A request is charged whole blocks. 9 blocks of 16 are 144 places, and 144 / 100 is 1.44x, but 100 tokens
take 7 blocks, and 9 / 7 is 1.29x. Where max_model_len is a multiple of block_size the two agree.

Refused by `test_the_lines_count_requests_of_full_length`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def max_concurrency(num_blocks: int, max_model_len: int, block_size: int) -> float:
    return num_blocks * block_size / max_model_len


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

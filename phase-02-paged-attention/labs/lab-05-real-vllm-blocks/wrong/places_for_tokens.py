"""The second line is taken for the places of the pool: blocks times block_size.

It says how many tokens requests of max_model_len bring, the last block of each part empty. 381 blocks of
128 are 48,768 places and, for requests of 130 tokens, 24,765 tokens.

Refused by `test_the_lines_count_requests_of_full_length`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def kv_cache_tokens(num_blocks: int, max_model_len: int, block_size: int) -> int:
    return num_blocks * block_size


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

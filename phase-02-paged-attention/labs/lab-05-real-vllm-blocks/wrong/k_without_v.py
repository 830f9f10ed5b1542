"""A page is counted with one vector a token and head.

A layer keeps a K and a V. Half a page makes a pool of twice the blocks, and the log's numbers double,
too.

Refused by `test_a_page_is_the_k_and_v_of_one_block_in_one_layer`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.page_bytes


def page_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype: str) -> int:
    return int(original(block_size, num_kv_heads, head_size, dtype) // 2)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

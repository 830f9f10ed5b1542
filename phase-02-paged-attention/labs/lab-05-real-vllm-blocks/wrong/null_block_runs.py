"""The null block is handed out like any other.

vLLM takes block 0 out of the pool when it starts, and no request ever holds it. Its log counts it, so a
pool of 8 blocks is 2.00x for four blocks each, and one such request runs. Take it off wherever a request
wants blocks.

Refused by `test_two_times_is_not_two_requests`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def run_at_once(num_blocks: int, num_tokens: int, block_size: int, max_num_seqs: int) -> int:
    return int(min(max_num_seqs, num_blocks // solution.blocks_of(num_tokens, block_size)))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

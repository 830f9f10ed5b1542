"""max_model_len is a whole number of blocks.

31 blocks hold 496 tokens, and a request of 497 computes 496 of them: its last token is never
computed. A limit of 496 is safe, and a token shorter than it has to be. (The mend that was proposed
upstream for the automatic length takes whole blocks. This lab asks for the largest.)

Refused by `test_the_length_that_fits`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.fit_max_model_len


def fit_max_model_len(num_gpu_blocks: int, block_size: int, longest: int) -> int:
    return min(int(right(num_gpu_blocks, block_size, longest)), (num_gpu_blocks - 1) * block_size)


solution.fit_max_model_len = fit_max_model_len


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

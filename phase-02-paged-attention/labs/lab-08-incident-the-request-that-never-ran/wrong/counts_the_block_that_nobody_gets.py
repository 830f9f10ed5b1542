"""Every block of the pool is counted as one to be given out.

That is the start-up check's own mistake: 32 blocks make 512 tokens, and no request ever had more
than 31 of them. The trace says how many are free when nobody holds any.

Refused by `test_the_boundary_of_a_prompt`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.admit


def admit(prompt_tokens: int, max_tokens: int, *, num_gpu_blocks: int, **engine: int) -> None:
    right(prompt_tokens, max_tokens, num_gpu_blocks=num_gpu_blocks + 1, **engine)


solution.admit = admit


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

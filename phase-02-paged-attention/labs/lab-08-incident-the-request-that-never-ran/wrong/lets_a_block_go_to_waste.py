"""A request that needs every usable block is refused.

"Fewer than" was written where "at most" is meant. On a server that is full of room nobody notices;
a client whose prompt just fits is sent away, and told that it needs 31 of 31.

Refused by `test_the_boundary_of_a_prompt`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.admit


def admit(prompt_tokens: int, max_tokens: int, *, num_gpu_blocks: int, **engine: int) -> None:
    right(
        prompt_tokens,
        max_tokens,
        num_gpu_blocks=max(num_gpu_blocks - 1, min(num_gpu_blocks, 1)),
        **engine,
    )


solution.admit = admit


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

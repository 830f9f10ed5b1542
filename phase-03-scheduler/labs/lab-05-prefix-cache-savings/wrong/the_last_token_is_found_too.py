"""A prompt that is cached to its last token is found to its last token.

Then nothing is left to run, and there are no logits to sample from. The last token is always computed:
how many may be found at most?

Refused by `test_found`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def found(prompt_tokens: int, cached_prefix_tokens: int, block_size: int) -> int:
    return min(cached_prefix_tokens, prompt_tokens) // block_size * block_size


solution.found = found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

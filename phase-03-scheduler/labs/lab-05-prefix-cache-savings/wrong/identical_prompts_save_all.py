"""The formula rounds the shared part down to blocks, and that is all.

Where the prompts are identical and fill their blocks, the last token must run, and its block with it.

Refused by `test_savings`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def savings(num_requests: int, prompt_tokens: int, shared_tokens: int, block_size: int) -> int:
    return (num_requests - 1) * (shared_tokens // block_size * block_size)


solution.savings = savings


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""All requests save the shared part.

Somebody has to compute it. Only those who follow save something.

Refused by `test_savings`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def savings(num_requests: int, prompt_tokens: int, shared_tokens: int, block_size: int) -> int:
    return num_requests * solution.found(prompt_tokens, shared_tokens, block_size)


solution.savings = savings


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

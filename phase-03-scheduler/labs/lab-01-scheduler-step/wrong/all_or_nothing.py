"""A request gets all that is missing or nothing.

A prompt that is longer than the step is cut: it gets what the budget has left.

Refused by `test_clamp`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def clamp(num_new_tokens: int, threshold: int, token_budget: int) -> int:
    if 0 < threshold < num_new_tokens:
        num_new_tokens = threshold
    return num_new_tokens if num_new_tokens <= token_budget else 0


solution.clamp = clamp


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

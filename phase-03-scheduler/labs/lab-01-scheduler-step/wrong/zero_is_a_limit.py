"""A threshold of 0 is taken as a limit.

It means that there is none: ask `0 < threshold < num_new_tokens` first.

Refused by `test_clamp`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def clamp(num_new_tokens: int, threshold: int, token_budget: int) -> int:
    return min(num_new_tokens, threshold, token_budget)


solution.clamp = clamp


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""The formula rounds down.

A rest is a step of its own: 47 tokens at 16 a step take three steps, not two. Round up:
`-(-a // b)`.

Refused by `test_steps_by_formula`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def num_prefill_steps(
    num_prompt_tokens: int, budget: int, threshold: int = 0, num_cached: int = 0
) -> int:
    most = min(budget, threshold) if threshold > 0 else budget
    return (num_prompt_tokens - num_cached) // most


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

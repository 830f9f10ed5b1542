"""The formula counts one step more where the pieces come out even.

48 tokens at 16 a step are three steps: `a // b + 1` is right only if there is a rest.

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
    return (num_prompt_tokens - num_cached) // most + 1


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

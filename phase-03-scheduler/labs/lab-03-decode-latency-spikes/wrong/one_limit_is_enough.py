"""Whoever keeps one of the two limits counts.

Goodput counts people who were served well, and a late first token is not well, however smooth the rest.

Refused by `test_goodput`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def goodput(found: Any, ttft_limit: float, itl_limit: float) -> float:
    if not found:
        return 0.0
    good = [
        one.ttft <= ttft_limit or not one.itls or solution.percentile(one.itls, 99) <= itl_limit
        for one in found.values()
    ]
    return sum(good) / len(good)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

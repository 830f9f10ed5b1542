"""The mean of the gaps is held against the limit.

A spike drowns in the mean: 39 gaps of 8 ms and one of 400 have a mean of 18.

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
        one.ttft <= ttft_limit and sum(one.itls) <= itl_limit * len(one.itls)
        for one in found.values()
    ]
    return sum(good) / len(good)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

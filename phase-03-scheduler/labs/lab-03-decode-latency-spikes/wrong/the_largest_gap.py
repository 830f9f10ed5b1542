"""The largest gap is held against the limit, not the 99th percentile.

One late token in two hundred is within it: that is what a percentile forgives and a maximum does not.

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
        one.ttft <= ttft_limit and max(one.itls, default=0.0) <= itl_limit for one in found.values()
    ]
    return sum(good) / len(good)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

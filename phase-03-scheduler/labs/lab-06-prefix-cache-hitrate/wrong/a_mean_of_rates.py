"""The line shows the mean of the rates of single look-ups.

It is a sum over a sum, in tokens, so a long prompt weighs as much as it is long.

Refused by `test_the_rate_is_of_tokens`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def line_rate(steps: Any, most: int = 1000) -> float:
    looks = [look for step in steps for look in step.lookups if not look.preempted][-most:]
    rates = [look.num_hits / look.num_tokens for look in looks]
    return sum(rates) / len(rates) if rates else 0.0


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""A token's latency is the step that brought it.

It is the time since the token before, or since the arrival, and that may be several steps: keep a sum and
set it back when a token comes.

Refused by `test_latencies_by_hand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def latencies(steps: Sequence[Any], cost: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for step in steps:
        for name in step.sampled:
            if name in found:
                found[name].itls.append(cost(step))
            else:
                found[name] = solution.Latency(cost(step), [])
    return found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

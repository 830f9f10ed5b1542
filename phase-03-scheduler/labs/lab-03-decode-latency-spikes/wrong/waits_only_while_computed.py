"""Steps that compute nothing for a request do not count for it.

Whoever waits in the queue, or has lost his blocks, waits all the same: add each step
to everybody who is here.

Refused by `test_latencies_by_hand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def latencies(steps: Sequence[Any], cost: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    since: dict[str, float] = {}
    for step in steps:
        for name in step.arrived:
            since[name] = 0.0
        for name in step.tokens:
            since[name] += cost(step)
        for name in step.sampled:
            waited, since[name] = since[name], 0.0
            if name in found:
                found[name].itls.append(waited)
            else:
                found[name] = solution.Latency(waited, [])
    return found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""A step with more look-ups than the window holds is forgotten at once.

The newest step stays, however large, or the line would say 0 % on a server with very many
short requests.

Refused by `test_the_newest_step_stays`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def line_rate(steps: Any, most: int = 1000) -> float:
    last = [step for step in steps if any(not look.preempted for look in step.lookups)][-1:]
    if last and len(last[0].lookups) > most:
        return 0.0
    return float(solution.line_rate(steps, most))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

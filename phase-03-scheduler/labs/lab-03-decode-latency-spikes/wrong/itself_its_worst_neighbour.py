"""The victim is its own neighbour.

Its prompt is computed in steps of its own; ask who *else* made it wait.

Refused by `test_worst_neighbour`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def worst_neighbour(steps: Sequence[Any], victim: str) -> Any:
    parts = [part for step in steps if victim in step.sampled for part in step.tokens.items()]
    return max(parts, key=lambda part: part[1])[0] if parts else None


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

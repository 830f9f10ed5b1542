"""Steps that brought the victim no token count as well.

The question is about the steps at whose end it got one.

Refused by `test_worst_neighbour`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def worst_neighbour(steps: Sequence[Any], victim: str) -> Any:
    parts = [p for step in steps for p in step.tokens.items() if p[0] != victim]
    return max(parts, key=lambda part: part[1])[0] if parts else None


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

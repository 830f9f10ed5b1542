"""The values are not put in order first.

A place means something in a row that is sorted. Take `sorted(values)`.

Refused by `test_percentile_by_hand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def percentile(values: Sequence[float], q: float) -> float:
    if not values:
        raise ValueError("no values, no percentile")
    place = q / 100 * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

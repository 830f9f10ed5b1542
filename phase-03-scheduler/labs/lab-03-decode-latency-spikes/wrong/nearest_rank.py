"""The percentile is one of the values.

That is another definition (nearest rank). `numpy.percentile`, which vLLM's benchmark uses, goes between
two neighbours.

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
    ordered = sorted(values)
    return ordered[min(int(q / 100 * len(ordered)), len(ordered) - 1)]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

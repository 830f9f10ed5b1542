"""The caller's list is sorted in place.

`values.sort()` changes what belongs to somebody else. Take `sorted(values)`.

Refused by `test_percentile_is_numpys`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.percentile


def percentile(values: Any, q: float) -> Any:
    values.sort()
    return Right(values, q)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""Each piece reads its own keys only.

Its tokens see all that stands before them, so its attention reads those keys too, again in each piece.

Refused by `test_keys_are_read_again`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def num_keys_read(chunks: list[int], num_cached: int = 0) -> int:
    return num_cached + sum(chunks)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

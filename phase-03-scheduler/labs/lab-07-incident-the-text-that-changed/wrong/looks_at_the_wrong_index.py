"""The right neighbour, but the wrong part of her text.

A block id says nothing about positions. Where the block stands in the table of who wrote it does:
index 1 of blocks of 16 is positions 16 to 31.

Refused by `test_what_was_read_instead`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(written_at=(32, 48))


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

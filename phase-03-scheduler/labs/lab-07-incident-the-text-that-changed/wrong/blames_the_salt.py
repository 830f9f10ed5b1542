"""Eve's text was read, so the salt must have failed.

The salt is in the hash, and nobody ever found a block under Eve's. The block was published under
Gil's hash, and only its content was Eve's.

Refused by `test_the_cause`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(cause="C")


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""hal-3 came last, so it is Hal's text that was read.

hal-3 was given the other block. Find out who wrote the slots of this one last: go back through the
tables.

Refused by `test_what_was_read_instead`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(written_by="hal-3")


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

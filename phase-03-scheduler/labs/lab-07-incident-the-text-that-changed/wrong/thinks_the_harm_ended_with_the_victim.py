"""Nobody else is thought to have read the block.

The block stayed published under a name that anybody with the same question asks for. Look at the
tables of those that came later.

Refused by `test_who_else_read_it`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(also_read_by="gil-2")


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

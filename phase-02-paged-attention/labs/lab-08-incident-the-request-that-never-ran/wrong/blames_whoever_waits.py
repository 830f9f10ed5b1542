"""mail-7 is called stuck from the step in which it arrived.

At first it waits for a good reason: somebody else holds 30 of the blocks and is getting on. Only
when these come back and it still gets nothing is something wrong. In an incident both look the same
from outside.

Refused by `test_when_waiting_became_needless`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(needless_from=175)


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

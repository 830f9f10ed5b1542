"""Only the victim's answer is called changed.

gil-4 ran alone, in a quiet machine, and was never preempted. It was told the same wrong text all the
same. Compare its answer with Wednesday's as well.

Refused by `test_who_was_told_something_else`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(changed=("gil-2",))


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

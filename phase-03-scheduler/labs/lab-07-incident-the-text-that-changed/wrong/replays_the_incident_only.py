"""The incident is played again, and nothing else.

That catches the pin. A mend that deals with exactly these requests passes: whole chunks of whole blocks,
one victim, nobody who begins alike, nobody behind it.

Refused by `test_your_test_fails_on_every_bad_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
solution.CASES = solution.CASES[1:2]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

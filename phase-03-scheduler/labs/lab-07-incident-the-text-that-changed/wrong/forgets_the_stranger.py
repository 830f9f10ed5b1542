"""Nobody asks the same under another salt.

The tokens are the same under any salt, so no text can show it. Only what a stranger finds does: it has
to be nothing.

Refused by `test_your_test_fails_on_every_bad_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
solution.CASES = tuple(case._replace(stranger="") for case in solution.CASES)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

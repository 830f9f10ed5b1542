"""Of the two blocks that were taken back, the one is named that hal-3 was given.

Who is given a block evicts its hash, so that one was harmless. Look at what is still published
under gil-2's name after the step.

Refused by `test_the_block`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(block=1)


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

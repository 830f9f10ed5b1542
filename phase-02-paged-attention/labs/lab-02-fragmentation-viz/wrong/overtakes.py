"""Who does not fit is passed over, and shorter requests behind it are admitted.

The pool looks fuller, and the long request may wait for ever: every hole is filled by somebody short
before it is large enough. First come, first served: stop at the first that does not fit.

Refused by `test_first_come_first_served`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def admit(allocator: Any, lengths: Any, at_most: int) -> int:
    names = (str(number) for number in range(10**9))
    return sum(allocator.allocate(next(names), length, at_most) for length in lengths)


solution.admit = admit


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

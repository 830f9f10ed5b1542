"""The last line of the log is believed: 100 % of the cache in use.

That was true when it was written. In-process, vLLM writes such a line only when a step had
something to tell its clients, so after it there is silence, and in the trace every usable block is
free.

Refused by `test_the_cause`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(cause="A")


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

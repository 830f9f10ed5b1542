"""The number is the step, from 1.

A step's events count from 1, because step 0 is before the first; the log counts the lines as it writes them,
from 0. Step 1 is Iteration(0), and the README's Iteration(19) is step 20. `enumerate` counts so.

Refused by `test_every_step_has_a_line`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def iterations_of(events: Any) -> Any:
    return [line._replace(number=line.number + 1) for line in solution.iterations_of(events)]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""The probe counts the steps that it has seen, instead of taking the engine's number.

The two agree for a probe that was there from the beginning. Put on later it says 1 where the engine's log
says 5,000, and nobody can lay the two side by side. The record has the number: `record.index`.

Refused by `test_a_probe_put_on_late_keeps_the_engines_index`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.BatchProbe.observe


def observe(self: Any, record: Any) -> None:
    right(self, record)
    step = self.steps[-1]
    self.steps[-1] = dataclasses.replace(step, index=len(self.steps))


solution.BatchProbe.observe = observe


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""A step of an idle engine writes the last step down once more.

With nothing to do `engine.step()` returns at once: no schedule, no record, and `last` still holds the step
before. Ask `has_unfinished_requests()` first.

Refused by `test_an_idle_step_leaves_no_event`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class Tracer(solution.Tracer):  # type: ignore[name-defined, misc]
    def step(self) -> Any:
        if not self.engine.has_unfinished_requests() and self.last is not None:
            self.events += [e for e in self.events if e.step == self.num_steps]
        return super().step()


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

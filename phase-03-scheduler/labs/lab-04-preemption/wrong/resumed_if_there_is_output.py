"""Who has output comes back, everybody else is new.

A request may lose its blocks in the middle of its prompt, and the worker knows it then. Ask for the
status.

Refused by `test_who_has_no_answer_yet_is_resumed_too`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)

Right = solution.Scheduler


class Scheduler(Right):  # type: ignore[valid-type,misc]
    def _schedule_waiting(self, step: Any) -> None:
        super()._schedule_waiting(step)
        for request in list(step.scheduled_resumed_reqs):
            if request.num_output_tokens == 0:
                step.scheduled_resumed_reqs.remove(request)
                step.scheduled_new_reqs.append(request)


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""Only requests with the status WAITING are counted as waiting, so whoever was preempted is nowhere.

A preempted request goes back into the queue, to its head, and its client waits like any other's. Its status
is PREEMPTED, to tell that it has run before. Take the queue as it is.

Refused by `test_a_preempted_request_waits`.
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
    queue = self.core.scheduler.waiting
    never_ran = tuple(r.request_id for r in queue if r.status.name == "WAITING")
    self.steps[-1] = dataclasses.replace(step, waiting=never_ran)


solution.BatchProbe.observe = observe


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

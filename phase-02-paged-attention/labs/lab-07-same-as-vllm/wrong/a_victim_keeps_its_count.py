"""A victim gives its blocks back, and its counter stays.

When it comes back, its slots are reckoned from tokens that are no longer in the cache. Blocks back,
counter to 0: the two are one step.

Refused by `test_a_victim_starts_over`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def preempt(self: Any, request_id: str) -> None:
    self.manager.free(self.requests[request_id])


solution.Replay.preempt = preempt


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

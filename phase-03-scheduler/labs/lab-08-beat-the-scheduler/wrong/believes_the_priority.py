"""It serves the important first.

Importance is what the client says. Who sees to it that everybody gets a share?

Refused by `test_users_are_served_alike`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def policy(request: Any, now: float) -> Any:
    return (request.priority, request.arrival_time)


def make_scheduler(base: type, policy: Any = policy) -> Any:
    return solution.make_scheduler(base, policy)

"""It takes a policy, and follows the one of its own file.

A parameter that is not used: whoever compares policies compares one with itself.

Refused by `test_the_scheduler_follows_the_policy_it_was_given`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    return solution.make_scheduler(base)

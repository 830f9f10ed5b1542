"""The gap between two tokens counts only the steps in which the request itself was scheduled.

A preempted request is in no step, and that is when its client waits longest. The clock does not stop
for those who are not in the batch: count every step from one token to the next.

Refused by `test_the_gap_is_between_tokens`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.longest_gap


def longest_gap(steps: Any, request_id: str) -> int:
    return int(
        right([step for step in steps if request_id in step.num_scheduled_tokens], request_id)
    )


solution.longest_gap = longest_gap


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

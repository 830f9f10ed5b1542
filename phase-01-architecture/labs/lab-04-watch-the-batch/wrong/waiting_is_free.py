"""The time to the first token begins when the request is first scheduled.

Its client has been waiting since it came. In a busy server most of the time to the first token is
spent in the queue, and a measure that leaves it out looks best where it is worst. Begin with the first
step that sees the request, waiting or scheduled.

Refused by `test_first_token_counts_the_wait`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.time_to_first_token


def time_to_first_token(steps: Any, request_id: str) -> Any:
    return right([dataclasses.replace(step, waiting=()) for step in steps], request_id)


solution.time_to_first_token = time_to_first_token


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""The time to the first token is counted from the first step in which the request ran.

That is the time of its prefill. The user's clock started when the request came, and in a full server
most of the wait is the queue. Count from the step of its first event, which is WAITING.

Refused by `test_the_queue_counts_to_the_first_token`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def steps_to_first_token(events: Any, request_id: str) -> int | None:
    mine = solution.life(events, request_id)
    ran = [event.step for event in mine if event.num_scheduled_tokens]
    steps = solution.token_steps(mine, request_id)
    return steps[0] - ran[0] + 1 if steps else None


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

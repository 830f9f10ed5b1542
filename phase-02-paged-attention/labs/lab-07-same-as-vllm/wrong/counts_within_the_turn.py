"""The counter moves in the request's turn.

A request can be preempted by one behind it in the same step; then it never computes the tokens that
were counted. The counters move once, for all who are in the step, when it is scheduled.

Refused by `test_the_counters_move_when_all_are_scheduled`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.Replay.ask


def ask(self: Any, turn: Any) -> bool:
    given = bool(right(self, turn))
    if given:
        self.requests[turn.request_id].num_computed_tokens += turn.num_tokens
    return given


def compute(self: Any, scheduled: Any) -> None:
    pass


solution.Replay.ask, solution.Replay.compute = ask, compute


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

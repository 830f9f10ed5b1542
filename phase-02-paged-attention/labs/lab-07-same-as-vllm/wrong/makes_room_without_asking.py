"""The victims are preempted first, and blocks are asked for once.

The ids come out the same with a manager that is right. One that has room where vLLM had none is
never caught, because nobody asks it: a refusal is an answer, and it is compared like a table.

Refused by `test_a_turn_asks_before_each_victim`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def serve(self: Any, turn: Any) -> bool:
    for victim in turn.victims:
        self.preempt(victim)
    if turn.request_id in turn.victims:
        return True
    return bool(self.ask(turn) == turn.fits)


solution.Replay.serve = serve


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

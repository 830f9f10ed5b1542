"""An admission asks for the tokens of this step only.

A long prompt then comes in by its first chunk, and the blocks for the rest are not there.
`scheduler_reserve_full_isl` is on at the pin, and asks for everything the request has now:
`full_sequence_must_fit=True`.

Refused by `test_an_admission_looks_up_first`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def ask(self: Any, turn: Any) -> bool:
    request = self.requests[turn.request_id]
    if not turn.admitted:
        self.gave = self.manager.allocate_slots(request, turn.num_tokens) is not None
        return bool(self.gave)
    hits, length = self.manager.get_computed_blocks(request)
    self.gave = self.manager.allocate_slots(request, turn.num_tokens, length, hits) is not None
    if self.gave:
        request.num_computed_tokens = length
    return bool(self.gave)


solution.Replay.ask = ask


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

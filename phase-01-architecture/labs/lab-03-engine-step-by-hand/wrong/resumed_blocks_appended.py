"""The blocks of a resumed request are appended to the table it had before the preemption.

Those old blocks were freed, and others hold them now. Its first tokens are then written into somebody
else's cache, and read from there: two requests go wrong, neither with an error. For the ids in
`resumed_req_ids` the list is the whole table; replace it.

Refused by `test_a_resumed_request_gets_its_table_replaced`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.update_states


def update_states(requests: Any, output: Any) -> None:
    cached = dataclasses.replace(output.scheduled_cached_reqs, resumed_req_ids=set())
    right(requests, dataclasses.replace(output, scheduled_cached_reqs=cached))


solution.update_states = update_states


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

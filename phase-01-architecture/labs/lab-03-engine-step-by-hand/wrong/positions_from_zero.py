"""Each request's positions start from 0 in every step.

It passes where a whole prompt is computed in one step. A chunk, a decode or a prompt with prefix hits
starts further on: at `num_computed_tokens`. From 0, its tokens are taken from the prompt's start, turned
by the wrong angle, and written over slots that are in use.

Refused by `test_the_worked_example`.
"""

from __future__ import annotations

import copy
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.prepare_inputs


def prepare_inputs(requests: Any, output: Any, block_size: int) -> Any:
    inputs = right(requests, output, block_size)
    restarted = {req_id: copy.copy(state) for req_id, state in requests.items()}
    for state in restarted.values():
        state.num_computed_tokens = 0
    wrong = right(restarted, output, block_size)
    return inputs._replace(
        positions=wrong.positions, input_ids=wrong.input_ids, slot_mapping=wrong.slot_mapping
    )


solution.prepare_inputs = prepare_inputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

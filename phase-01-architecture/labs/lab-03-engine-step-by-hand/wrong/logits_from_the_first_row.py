"""The logits are read at the first row of each request instead of the last.

Row i predicts the token after position i. A decode has one row, so that it cannot go wrong there, and
short prompts are rarely looked at closely. A request's last row is one before the next request's first:
`query_start_loc[1:] - 1`.

Refused by `test_the_worked_example`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.prepare_inputs


def prepare_inputs(requests: Any, output: Any, block_size: int) -> Any:
    inputs = right(requests, output, block_size)
    return inputs._replace(logits_indices=inputs.query_start_loc[:-1])


solution.prepare_inputs = prepare_inputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

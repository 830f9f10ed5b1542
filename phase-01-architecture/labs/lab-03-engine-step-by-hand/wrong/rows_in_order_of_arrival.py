"""Rows come in the order in which the worker got to know the requests, not as they were scheduled.

The arrays fit one another and the output says who is where, so most tokens come out right. But requests
without a seed draw from one random stream, in the order of the rows, and the engine goes by the
scheduler's. The two part when a preempted request comes back, or an order of priorities changes. Take
the ids from `num_scheduled_tokens`, in its order.

Refused by `test_the_worked_example`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.prepare_inputs


def prepare_inputs(requests: Any, output: Any, block_size: int) -> Any:
    scheduled = output.num_scheduled_tokens
    known = {req_id: scheduled[req_id] for req_id in requests if req_id in scheduled}
    return right(requests, dataclasses.replace(output, num_scheduled_tokens=known), block_size)


solution.prepare_inputs = prepare_inputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

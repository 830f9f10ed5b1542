"""The cost is always the number of tokens.

Call `cost(step)`: on an A100 a step of one token takes as long as one of a hundred.

Refused by `test_the_cost_is_the_callers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.latencies


def latencies(steps: Sequence[Any], cost: Any) -> Any:
    return Right(steps, solution.total_tokens)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

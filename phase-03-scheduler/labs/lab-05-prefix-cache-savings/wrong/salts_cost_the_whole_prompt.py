"""The price of a salt is taken against no caching at all.

Who has the same salt still shares. What salts cost is what is computed with them and would not be
without.

Refused by `test_price_of_salts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def price_of_salts(workload: Sequence[Any], block_size: int) -> int:
    together = [ask._replace(salt=None) for ask in workload]
    return sum(solution.scheduled_tokens(workload, block_size, False)) - sum(
        solution.scheduled_tokens(together, block_size, True)
    )


solution.price_of_salts = price_of_salts


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

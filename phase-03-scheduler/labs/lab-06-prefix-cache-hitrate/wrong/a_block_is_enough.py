"""A prompt of exactly one block is long enough.

Its last token must be computed, so there is no full block that it could find.

Refused by `test_a_full_block_and_one_token`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def diagnose(visits: Any, which: int, found: int, block_size: int, caching: bool) -> Any:
    got = solution.diagnose(visits, which, found, block_size, caching)
    if got.reason != solution.SHORT or len(visits[which].tokens) < block_size:
        return got
    visits = [visit._replace(tokens=(*visit.tokens, -1)) for visit in visits]
    longer = solution.diagnose(visits, which, found, block_size, caching)
    return got._replace(reason=longer.reason)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

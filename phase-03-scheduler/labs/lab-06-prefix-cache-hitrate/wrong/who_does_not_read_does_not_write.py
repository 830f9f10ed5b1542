"""A request for logprobs of its prompt passes the cache by altogether.

It must not read, or there would be no logprobs of what it found. But it computes full blocks like
anybody, and they are published.

Refused by `test_a_request_that_does_not_read_writes`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def found_tokens(visits: Any, block_size: int, caching: bool) -> list[int]:
    readers = solution.found_tokens([v for v in visits if v.reads], block_size, caching)
    found = iter(readers)
    return [next(found) if visit.reads else 0 for visit in visits]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

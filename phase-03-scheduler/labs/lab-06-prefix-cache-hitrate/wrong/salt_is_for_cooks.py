"""A salt changes nothing.

It is hashed into the first block, and each block's hash contains the one before. So a tenant with
another salt finds nothing of yours, and cannot learn from a fast answer that you asked the same.

Refused by `test_salts_keep_apart`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def found_tokens(visits: Any, block_size: int, caching: bool) -> list[int]:
    plain = [visit._replace(salt=None) for visit in visits]
    found: list[int] = solution.found_tokens(plain, block_size, caching)
    return found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""Somebody else had it under another salt, so the salt is to blame.

Ask first whether it was there under its own salt. Then it could have been found, and was not.

Refused by `test_another_salt`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def diagnose(visits: Any, which: int, found: int, block_size: int, caching: bool) -> Any:
    got = solution.diagnose(visits, which, found, block_size, caching)
    mine = visits[which]
    others = any(
        one.salt != mine.salt and one.tokens[:block_size] == mine.tokens[:block_size]
        for one in visits[:which]
    )
    return got._replace(reason=solution.SALT) if got.reason == solution.EVICTED and others else got


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

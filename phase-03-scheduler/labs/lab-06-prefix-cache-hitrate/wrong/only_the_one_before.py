"""The beginning is compared with the latest visit only.

The cache remembers more than one. Take the longest beginning over all who came before.

Refused by `test_too_little`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def diagnose(visits: Any, which: int, found: int, block_size: int, caching: bool) -> Any:
    got = solution.diagnose(visits, which, found, block_size, caching)
    near = visits[max(which - 1, 0) : which + 1]
    return got._replace(
        common=solution.diagnose(near, len(near) - 1, found, block_size, caching).common
    )


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

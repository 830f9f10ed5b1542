"""GB taken for GiB: 10**9 bytes where 1024**3 are meant.

They are 7% apart, which is two users in thirty. A GPU of "24 GB" has 24 GiB, near enough, and vLLM
counts in GiB. Use one unit, GIB, throughout.

Refused by `test_the_budget_is_a_share_of_the_gpu`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)

solution.GIB = 10**9


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

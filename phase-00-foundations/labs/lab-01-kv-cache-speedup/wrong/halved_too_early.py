"""n // 2 pairs of (first + last): right for even n, one half-pair short for odd n.

The sum of n terms is n times their average, and n need not be even. n * (n - 1) always is, so halve that, or
the whole product: n * (first + last) // 2.

Refused by `test_no_cache_is_quadratic`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def work_without_cache(prompt_len: int, num_new_tokens: int) -> int:
    return num_new_tokens // 2 * (2 * prompt_len + num_new_tokens - 1)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

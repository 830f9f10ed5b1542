"""Tokens are compared place by place, and all that agree are counted.

What stands behind the first difference was computed in the light of another text. Stop there.

Refused by `test_common_prefix`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x == y for x, y in zip(a, b, strict=False))


solution.common_prefix = common_prefix


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

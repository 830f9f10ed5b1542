"""Answers are compared as far as the shorter one goes.

`zip` stops at the shorter list without a word. A token too few is a change.

Refused by `test_what_counts_as_a_change`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def changed(
    expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: float = 1e-3
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, one in expected.items():
        other = actual[name]
        if any(a != b for a, b in zip(one.token_ids, other.token_ids, strict=False)):
            found[name] = "tokens"
        elif any(
            abs(a - b) > tolerance for a, b in zip(one.logprobs, other.logprobs, strict=False)
        ):
            found[name] = "logprobs"
    return found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

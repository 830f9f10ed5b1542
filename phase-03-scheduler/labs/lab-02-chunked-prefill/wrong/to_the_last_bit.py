"""Logprobs must be equal to the last bit.

A matrix product over other rows adds up in another order, and floats then differ in their last places.
Ask whether they are off by more than `tolerance`.

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
        if one.token_ids != actual[name].token_ids:
            found[name] = "tokens"
        elif one.logprobs != actual[name].logprobs:
            found[name] = "logprobs"
    return found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

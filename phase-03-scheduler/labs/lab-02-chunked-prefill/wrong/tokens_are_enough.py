"""Only tokens are compared.

A fault may move a probability and not yet the likeliest token: `TopLeft` shows in Gil's logprobs alone.
Compare both.

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
    return {
        name: "tokens" for name, one in expected.items() if one.token_ids != actual[name].token_ids
    }


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

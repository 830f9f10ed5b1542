"""The blocks are copied out, and are back for nothing.

The link is taken a second time when the victim returns.

Refused by `test_out_and_in`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def swap_ms(num_tokens: int, model: Any, link: Any) -> float:
    return solution.kv_bytes(num_tokens, model) / link.bandwidth * 1e3


solution.swap_ms = swap_ms


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""Lab 03-08: eight policies to be ranked. The engine's own two, your own or the solution's, and five more."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

Policy = Callable[[Any, float], Any]


def shortest_prompt(request: Any, now: float) -> Any:
    return request.num_prompt_tokens


def longest_prompt(request: Any, now: float) -> Any:
    return -request.num_prompt_tokens


def newest(request: Any, now: float) -> Any:
    return -request.arrival_time


def shortest_answer(request: Any, now: float) -> Any:
    return request.max_tokens


def response_ratio(request: Any, now: float) -> Any:
    """Highest response ratio next: who has waited long for what it wants."""
    wants = request.num_prompt_tokens + 5 * request.max_tokens
    return -(now - request.arrival_time) / wants


OTHERS: dict[str, Policy] = {
    "shortest prompt": shortest_prompt,
    "longest prompt": longest_prompt,
    "newest": newest,
    "shortest answer": shortest_answer,
    "response ratio": response_ratio,
}
BUILT_IN = ("fcfs", "priority")


def tau(one: dict[str, float], other: dict[str, float], apart: float = 0.0) -> float:
    """Kendall's tau of two rankings by score, over the pairs that `one` puts more than `apart` apart.

    1 if `other` has all of them in the same order, -1 if all in the opposite one; a pair that `other` has
    equal counts as neither. Raises ValueError if no pair is left. Source: Kendall, 1938.
    """
    pairs = [(a, b) for a, b in combinations(one, 2) if abs(one[a] - one[b]) > apart]
    if not pairs:
        raise ValueError(f"no two of {len(one)} scores are more than {apart} apart")
    signs = [_sign(one[a] - one[b]) * _sign(other[a] - other[b]) for a, b in pairs]
    return sum(signs) / len(pairs)


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)

"""Pairs are counted as queries times keys.

A query sees itself and what stands before it, not what comes after: within a piece of n tokens these are
n (n + 1) / 2 pairs.

Refused by `test_pairs_do_not_depend_on_the_cut`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def num_pairs(chunks: list[int], num_cached: int = 0) -> int:
    pairs, before = 0, num_cached
    for chunk in chunks:
        before += chunk
        pairs += chunk * before
    return pairs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

"""What the tests of lab 04-03 share: attention in one piece, random states, and sums without rounding."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

Array = np.ndarray


def dense(query: Array, key: Array, value: Array, scale: float) -> Array:
    """Attention of each row to all keys; 0 where there are none."""
    if not len(key):
        return np.zeros((len(query), value.shape[1]))
    scores = scale * query @ key.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ value / weights.sum(axis=1, keepdims=True)


def whole_numbers(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Scores `[n]` and values `[n, 2]`, whole numbers so small that no float64 sum of them is rounded.

    Scores are at most 40 apart and values at most 8, so for 40 keys every sum is a multiple of 2 ** -40 below
    2 ** 9: 49 of the 53 bits that a float64 has.
    """
    return rng.integers(-20, 21, n).astype(float), rng.integers(-8, 9, (n, 2)).astype(float)


def state_of(lab: ModuleType, scores: Array, value: Array) -> Any:
    """One row that has seen these keys, by the definition; weights are powers of two."""
    if not len(scores):
        return lab.State(np.array([-np.inf]), np.zeros(1), np.zeros((1, value.shape[1])))
    weights = np.exp2(scores - scores.max())
    return lab.State(scores.max()[None], weights.sum()[None], (weights @ value)[None])


def exact_total(scores: Array, value: Array) -> tuple[Fraction, list[Fraction]]:
    """The sums of 2 ** score and of 2 ** score * value, of whole numbers and without rounding."""
    weights = [Fraction(2) ** int(score) for score in scores]
    columns = [
        sum((w * int(v) for w, v in zip(weights, column, strict=True)), Fraction(0))
        for column in value.T
    ]
    return sum(weights, Fraction(0)), columns


def any_tree(lab: ModuleType, rng: np.random.Generator, states: list[Any]) -> Any:
    """All states in one: two neighbours at a time, whichever chance names."""
    left = list(states)
    while len(left) > 1:
        at = int(rng.integers(len(left) - 1))
        left[at : at + 2] = [lab.merge(left[at], left[at + 1])]
    return left[0]


def show(state: Any) -> str:
    """A state's first row on one line."""
    return f"m {state.m[0]:g}, l {state.l[0]:g}, acc {np.round(state.acc[0], 4).tolist()}"


def same_bits(a: Any, b: Any) -> bool:
    """Whether two states are the same to the last bit."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def what_is_wrong(got: Any, want: Array, tolerance: float = 1e-12) -> str:
    """Nothing where the two are equal to `tolerance` of the largest value, or of 1; else what is wrong."""
    if not isinstance(got, np.ndarray) or got.shape != want.shape:
        return f"the shape is {want.shape}, not {getattr(got, 'shape', type(got).__name__)}"
    if not np.isfinite(got).all():
        return f"{int((~np.isfinite(got)).sum())} of {got.size} numbers are NaN or infinite"
    error = float(np.abs(got - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0)))
    return f"off by {error:.1e}, where {tolerance:.0e} is allowed" if error > tolerance else ""

"""What the tests of lab 04-02 share: keys that note what is read of them, and attention without tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


class CountingKeys:
    """K and V of one request in order. Positions that are not written yet hold NaN, and every read is noted.

    Attributes:
        key, value: float64 `[num_kv_heads, room, D]`; `room` is more than the request will have.
        reads: `(first, last)` of each read, in order.
    """

    def __init__(self, seed: int, written: int, num_kv_heads: int = 2, head_size: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.num_kv_heads = num_kv_heads
        self.written = 0
        shape = (2, num_kv_heads, written, head_size)
        self.coming = rng.normal(size=shape)
        self.key, self.value = np.full((2, num_kv_heads, written + 64, head_size), np.nan)
        self.reads: list[tuple[int, int]] = []
        self.write(written)

    def write(self, up_to: int) -> None:
        """The tokens up to this position are in the cache, and no others."""
        self.written = up_to
        for cache, rows in zip((self.key, self.value), self.coming, strict=True):
            cache[:] = np.nan
            cache[:, :up_to] = rows[:, :up_to]

    def read(self, first: int, last: int) -> tuple[Array, Array]:
        """As the starter says."""
        assert 0 <= first < last <= self.key.shape[1], (
            f"read({first}, {last}): positions from 0 on, and one at least"
        )
        self.reads.append((int(first), int(last)))
        return self.key[:, first:last], self.value[:, first:last]


def dense(query: Array, key: Array, value: Array, start_pos: int, scale: float) -> Array:
    """Causal attention row by row: token j of `query` sees the keys 0 to `start_pos + j`.

    Args:
        query: `[n, num_heads, D]`.
        key, value: `[num_kv_heads, keys, D]`.
    """
    out = np.empty_like(query)
    group = query.shape[1] // len(key)
    for j, h in np.ndindex(query.shape[:2]):
        sees = start_pos + j + 1
        scores = scale * key[h // group, :sees] @ query[j, h]
        weights = np.exp(scores - scores.max())
        out[j, h] = weights @ value[h // group, :sees] / weights.sum()
    return out


def what_is_wrong(got: Any, want: Array, tolerance: float = 1e-12) -> str:
    """Nothing where the two are equal to `tolerance` of the largest value; else what kind of wrong it is."""
    if not isinstance(got, np.ndarray) or got.shape != want.shape:
        shape = getattr(got, "shape", type(got).__name__)
        return f"the shape is {want.shape}, not {shape}"
    rows = np.flatnonzero(~np.isfinite(got).reshape(len(got), -1).all(axis=1))
    if rows.size:
        return (
            f"tokens {rows.tolist()} of the chunk are NaN or infinite. Positions that are not written "
            "yet hold NaN, and a row that sees no key has a sum of 0"
        )
    error = np.abs(got - want).reshape(len(got), -1).max(axis=1) / np.abs(want).max()
    wrong = np.flatnonzero(error > tolerance)
    if wrong.size:
        return (
            f"tokens {wrong.tolist()} of the chunk are off by up to {error.max():.1e} of the largest "
            f"value, where {tolerance:.0e} is allowed"
        )
    return ""

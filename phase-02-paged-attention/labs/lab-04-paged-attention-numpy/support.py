"""What the tests of lab 02-04 share: random requests in a poisoned cache, and attention without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass
class Case:
    """Requests whose K and V lie in blocks, in an order that means nothing; every other slot holds NaN.

    Attributes:
        keys, values: `[seq_len, num_kv_heads, D]` of each request, as if there were no blocks.
        query: `[num_seqs, num_heads, D]`, of each request's newest token.
        key_cache, value_cache: `[num_blocks, block_size, num_kv_heads, D]`.
        block_table: int32 `[num_seqs, max_num_blocks]`; past a request's last block it names a block of NaN.
        seq_lens: int32 `[num_seqs]`.
    """

    keys: list[Array]
    values: list[Array]
    query: Array
    key_cache: Array
    value_cache: Array
    block_table: Array
    seq_lens: Array

    @property
    def arguments(self) -> tuple[Any, ...]:
        scale = self.query.shape[-1] ** -0.5
        caches = (self.key_cache, self.value_cache)
        return self.query, *caches, self.block_table, self.seq_lens, scale


def empty_caches(shape: tuple[int, ...], layout: str) -> tuple[Array, Array]:
    """K and V caches of NaN, `[num_blocks, block_size, num_kv_heads, D]`, whatever they are in memory.

    `apart`: two arrays. `between`: K and V of a slot side by side, as in `mini_vllm`. `heads first`: the
    heads of a block one after the other.
    """
    num_blocks, block_size, num_kv_heads, head_size = shape
    if layout == "between":
        both = np.full((num_blocks, block_size, 2, num_kv_heads, head_size), np.nan)
        return both[:, :, 0], both[:, :, 1]
    if layout == "heads first":
        both = np.full((2, num_blocks, num_kv_heads, block_size, head_size), np.nan)
        return both[0].swapaxes(1, 2), both[1].swapaxes(1, 2)
    return np.full(shape, np.nan), np.full(shape, np.nan)


def make_case(
    seed: int,
    seq_lens: list[int],
    *,
    block_size: int = 4,
    num_kv_heads: int = 2,
    group: int = 2,
    head_size: int = 5,
    layout: str = "apart",
    loud: float = 1.0,
) -> Case:
    """A case with these lengths; `loud` multiplies the queries."""
    rng = np.random.default_rng(seed)
    needs = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(needs) + 3  # block 0, and two that nobody has
    order = rng.permutation(np.arange(1, num_blocks))
    unused = int(order[-1])
    table = np.full((len(seq_lens), max(needs) + 1), unused, np.int32)
    caches = empty_caches((num_blocks, block_size, num_kv_heads, head_size), layout)
    keys, values, taken = [], [], 0
    for i, (length, need) in enumerate(zip(seq_lens, needs, strict=True)):
        table[i, :need] = order[taken : taken + need]
        taken += need
        pair = rng.normal(size=(2, length, num_kv_heads, head_size))
        keys.append(pair[0])
        values.append(pair[1])
        for cache, rows in zip(caches, pair, strict=True):
            for position, row in enumerate(rows):
                cache[table[i, position // block_size], position % block_size] = row
    query = loud * rng.normal(size=(len(seq_lens), num_kv_heads * group, head_size))
    return Case(keys, values, query, *caches, table, np.array(seq_lens, np.int32))


def dense(query: Array, key: Array, value: Array) -> Array:
    """Causal attention without blocks, head by head and query by query: the last rows of the sequence.

    Args:
        query: `[n, num_heads, D]`, the newest n of the sequence.
        key, value: `[seq_len, num_kv_heads, D]`.
    """
    out = np.empty_like(query)
    group = query.shape[1] // key.shape[1]
    for j, h in np.ndindex(query.shape[:2]):
        sees = len(key) - len(query) + j + 1
        scores = key[:sees, h // group] @ query[j, h] / query.shape[-1] ** 0.5
        weights = np.exp(scores - scores.max())
        out[j, h] = weights @ value[:sees, h // group] / weights.sum()
    return out


POISON = (
    "Every slot that no token of the request has written holds NaN here, so yours has read one: past the "
    "last token, or in a block that is not in its table"
)


def expect_close(got: Any, want: Array, where: str, if_nan: str = POISON) -> None:
    """Equal to 1e-12 of the largest value; else say what kind of wrong it is."""
    assert isinstance(got, np.ndarray), f"{where}: return an array, not {type(got).__name__}"
    assert got.shape == want.shape, f"{where}: the shape is {want.shape}, not {got.shape}"
    nan = int(np.isnan(got).sum())
    assert not nan, f"{where}: {nan} of {got.size} numbers are NaN. {if_nan}"
    error = float(np.abs(got - want).max() / np.abs(want).max())
    assert error <= 1e-12, (
        f"{where}: off by {error:.1e} of the largest value, where 1e-12 is allowed. It is float64 and the "
        "same sum, so that is no rounding"
    )

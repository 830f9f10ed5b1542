"""What the tests of lab 04-01 share: a poisoned cache that counts, and attention without tiles."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

Array = np.ndarray


class CountingMemory:
    """One request's K and V in scattered blocks. Whatever is nobody's holds NaN, and every read is noted.

    The row of the table is two entries longer than the request: they name a block of NaN.

    Attributes:
        dense_key, dense_value: `[seq_len, num_kv_heads, D]`, in order, as if there were no blocks.
        keys, values: how often each position was read; positions past the end count too.
        looked_up: how often each entry of the table was read.
        largest: rows in the largest single read.
        reads: rows of each read of K, in order.
    """

    def __init__(
        self,
        seed: int,
        seq_len: int,
        block_size: int = 4,
        num_kv_heads: int = 2,
        head_size: int = 5,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.block_size = block_size
        self.seq_len = seq_len
        used = -(-seq_len // block_size)
        order = rng.permutation(used + 3).astype(np.int32)
        self._table = np.append(order[:used], [order[used]] * 2)
        self._cache = np.full((2, used + 3, block_size, num_kv_heads, head_size), np.nan)
        pair = rng.normal(size=(2, seq_len, num_kv_heads, head_size))
        self.dense_key, self.dense_value = pair
        for position in range(seq_len):
            block, slot = self._table[position // block_size], position % block_size
            self._cache[:, block, slot] = pair[:, position]
        self._position = {
            (int(block), slot): number * block_size + slot
            for number, block in reversed(list(enumerate(self._table)))
            for slot in range(block_size)
        }
        self.keys: Counter[int] = Counter()
        self.values: Counter[int] = Counter()
        self.looked_up: Counter[int] = Counter()
        self.largest = 0
        self.reads: list[int] = []

    def entries(self, numbers: Any) -> Any:
        """Entries of the block table."""
        numbers = np.asarray(numbers)
        bad = numbers[(numbers < 0) | (numbers >= len(self._table))]
        assert not bad.size, (
            f"entry {bad.flat[0]} of a table of {len(self._table)}: a token's entry is its position "
            f"divided by the block size, {self.block_size}, rounded down"
        )
        self.looked_up.update(numbers.ravel().tolist())
        return self._table[numbers]

    def key(self, blocks: Any, slots: Any) -> Array:
        """Rows of K."""
        self.reads.append(int(np.broadcast(blocks, slots).size))
        return self._read(0, self.keys, blocks, slots)

    def value(self, blocks: Any, slots: Any) -> Array:
        """Rows of V."""
        return self._read(1, self.values, blocks, slots)

    def _read(self, which: int, counts: Counter[int], blocks: Any, slots: Any) -> Array:
        blocks, slots = np.broadcast_arrays(blocks, slots)
        bad = slots[(slots < 0) | (slots >= self.block_size)]
        assert not bad.size, (
            f"slot {bad.flat[0]} of a block of {self.block_size}: a token's slot is what is left of its "
            "position after whole blocks"
        )
        places = list(zip(blocks.ravel().tolist(), slots.ravel().tolist(), strict=True))
        counts.update(self._position.get(place, -1) for place in places)
        self.largest = max(self.largest, len(places))
        return self._cache[which, blocks, slots]


def whole_softmax(scores: Array, value: Array) -> Array:
    """`[rows, keys]` and `[keys, D]` to `[rows, D]`; a row of -inf gives 0."""
    out = np.zeros((len(scores), value.shape[1]))
    for row, of_row in enumerate(scores):
        if np.isfinite(of_row).any():
            weights = np.exp(of_row - of_row.max())
            out[row] = weights @ value / weights.sum()
    return out


def dense(query: Array, key: Array, value: Array, scale: float) -> Array:
    """Attention of one token, head by head, without tiles or blocks."""
    group = query.shape[0] // key.shape[1]
    rows = []
    for h, q in enumerate(query):
        scores = scale * key[:, h // group] @ q
        rows.append(whole_softmax(scores[None], value[:, h // group])[0])
    return np.stack(rows)


def known_mistake(got: Any, query: Array, memory: CountingMemory, scale: float) -> str:
    """What a result of the right shape was computed as, where that can be told from its numbers."""
    key, value = memory.dense_key, memory.dense_value
    group = len(query) // key.shape[1]
    # Head 0, group, 2 * group, ..., 1, group + 1, ...: so dealt, head h reads KV head h % num_kv_heads.
    dealt = np.argsort(np.arange(len(query)) % key.shape[1], kind="stable")
    in_turn = np.empty_like(query)
    in_turn[dealt] = of_dealt = dense(query[dealt], key, value, scale)
    dealt_says = f"as if query head h read KV head h % {key.shape[1]}: it is h // {group}"
    for what, other in (
        ("as without a scale", dense(query, key, value, 1.0)),
        ("as with K in the place of V", dense(query, key, key, scale)),
        (dealt_says, in_turn),
        (dealt_says, of_dealt),
    ):
        if np.shape(got) == other.shape and np.allclose(got, other, rtol=1e-9):
            return f"; the numbers are {what}"
    return ""


def expect_close(got: Any, want: Array, where: str, if_nan: str) -> None:
    """Equal to 1e-12 of the largest value; else say what kind of wrong it is."""
    assert isinstance(got, np.ndarray), f"{where}: return an array, not {type(got).__name__}"
    assert got.shape == want.shape, f"{where}: the shape is {want.shape}, not {got.shape}"
    nan = int((~np.isfinite(got)).sum())
    assert not nan, f"{where}: {nan} of {got.size} numbers are NaN or infinite. {if_nan}"
    error = float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-300))
    assert error <= 1e-12, (
        f"{where}: off by {error:.1e} of the largest value, where 1e-12 is allowed. It is float64 and the "
        "same sum, so that is no rounding"
    )

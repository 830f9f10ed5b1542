"""Attention that never holds all its scores: keys come tile by tile, and a small state goes along.

The plain form of what a GPU's kernel does. `paged.py` copies a request's K and V into one piece and takes
a softmax over all of it. Here a tile of keys is read through the block table, scored, and forgotten.
What stays is a state for each row, a row being one query head of one query token. vLLM's step is
`vllm/v1/attention/ops/triton_attention_helpers.py:361 softmax_step`, and its merge of the states of parts
`vllm/v1/attention/ops/triton_unified_attention.py:646 reduce_segments`.

Invariants, which the tests check by name:

- **any-order**: a state depends on the keys it has seen, and not on how they were cut into tiles, in
  which order these came, or along which tree their states were merged. (But for rounding.)
- **nothing-seen**: the state of no key is neutral in a merge, and a row that sees no key finishes as 0.
  A key whose score is -inf has not been seen.
- **no-overflow**: `exp` is never asked for a positive number, so a row that has seen n keys has
  `1 <= l <= n`, whatever the scores are.
- **one-tile**: no more than `num_heads * query_tile * tile` scores are in memory at once.
- **causal-bounds**: a tile whose keys all rows see gets no mask, and a tile that no row sees is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.paged import PagedAttention, reshape_and_cache

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array


class State(NamedTuple):
    """What attention knows of the keys that it has seen, for each row.

    Attributes:
        m: `[..., rows]`, the largest score; -inf where no key was seen.
        l: `[..., rows]`, the sum of `exp(score - m)`.
        acc: `[..., rows, D]`, the sum of `exp(score - m) * value`, not divided by `l` yet.
    """

    m: NDArray[np.floating]
    l: NDArray[np.floating]  # noqa: E741, the name in vLLM and in the papers
    acc: NDArray[np.floating]


def empty(rows: tuple[int, ...], head_size: int, dtype: type = np.float32) -> State:
    """The state of no key (`vllm/v1/attention/ops/triton_attention_helpers.py:110 init_softmax_M`).

    Args:
        rows: the shape of `m`, `[..., rows]`.
    """
    return State(
        np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((*rows, head_size), dtype)
    )


def _shift(m: NDArray[np.floating]) -> NDArray[np.floating]:
    """What comes off the scores before `exp`: the maximum, or 0 where there is none yet.

    -inf - -inf would be NaN. The 0 is for this subtraction alone: kept as the maximum it would hide
    every later score below -100 or so.
    """
    return np.where(np.isneginf(m), m.dtype.type(0), m)


def update(state: State, scores: NDArray[np.floating], value: NDArray[np.floating]) -> State:
    """The state after one more tile of keys
    (`vllm/v1/attention/ops/triton_attention_helpers.py:361 softmax_step`).

    Args:
        scores: `[..., rows, keys]`, scaled; -inf hides a key from a row. There may be no keys at all.
        value: `[..., keys, D]`, finite for hidden keys too, because 0 * NaN is NaN.

    Returns:
        A new state; the one given is as it was.
    """
    m = np.maximum(state.m, scores.max(axis=-1, initial=-np.inf))
    shift = _shift(m)
    rescale = np.exp(state.m - shift)
    weights = np.exp(scores - shift[..., None])
    total = state.l * rescale + weights.sum(axis=-1)
    return State(m, total, state.acc * rescale[..., None] + weights @ value)


def merge(a: State, b: State) -> State:
    """The state of the keys of both. No key may be in both.
    Source: `vllm/v1/attention/ops/triton_unified_attention.py:646 reduce_segments`."""
    m = np.maximum(a.m, b.m)
    shift = _shift(m)
    of_a, of_b = np.exp(a.m - shift), np.exp(b.m - shift)
    acc = a.acc * of_a[..., None] + b.acc * of_b[..., None]
    return State(m, a.l * of_a + b.l * of_b, acc)


def finish(state: State) -> NDArray[np.floating]:
    """The weighted mean of the values, `[..., rows, D]`; 0 for a row that has seen no key."""
    total = state.l[..., None]
    out = np.zeros_like(state.acc)
    np.divide(state.acc, total, out=out, where=total > 0)
    return out


class OnlineAttention(PagedAttention):
    """`PagedAttention` without the copy and without the whole softmax; a test holds the two equal.

    It is the form to read, not the one to run: each tile is a dozen numpy calls.

    Args:
        tile: keys that are scored at once; it has nothing to do with the block size.
        query_tile: query tokens of a request that are scored at once.

    Raises ValueError where one of them is below 1.
    """

    supports_sliding_window = False
    supports_logits_soft_cap = False

    def __init__(self, tile: int = 64, query_tile: int = 32) -> None:
        for name, size in (("tile", tile), ("query_tile", query_tile)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.tile = tile
        self.query_tile = query_tile

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """As `PagedAttention.forward`."""
        reshape_and_cache(key, value, kv_cache, attn_metadata.slot_mapping)
        num_tokens, num_heads, head_size = query.shape
        output = np.empty((num_tokens, num_heads * head_size), np.float32)
        query_start_loc = attn_metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
            start, end = query_start_loc[i], query_start_loc[i + 1]
            for first in range(start, end, self.query_tile):
                rows = slice(first, min(first + self.query_tile, end))
                position = seq_len - (end - first)
                output[rows] = self._attend(
                    query[rows], kv_cache, attn_metadata.block_table[i], position
                )
        return output

    def _attend(
        self, query: Array, kv_cache: Array, block_ids: NDArray[np.int32], first_position: int
    ) -> Array:
        """Causal attention of neighbouring query tokens to everything up to each of them.

        Args:
            query: float32 `[n, num_heads, D]`; query j stands at position `first_position + j`.
            block_ids: `[max_blocks]`, the request's row of the block table.

        Returns:
            float32 `[n, num_heads * D]`.
        """
        n, num_heads, head_size = query.shape
        block_size, num_kv_heads = kv_cache.shape[1], kv_cache.shape[3]
        group = num_heads // num_kv_heads
        # [n, num_heads, D] -> [num_kv_heads, n * group, D]. The query heads that share a KV head are
        # rows beside each other, so one product scores a key that was read once for all of them.
        packed = query.reshape(n, num_kv_heads, group, head_size).swapaxes(0, 1)
        packed = packed.reshape(num_kv_heads, n * group, head_size) * np.float32(head_size**-0.5)
        row_position = first_position + np.arange(n * group) // group
        seq_len = first_position + n
        state = empty((num_kv_heads, n * group), head_size)
        for first in range(0, seq_len, self.tile):
            position = np.arange(first, min(first + self.tile, seq_len))
            block, slot = block_ids[position // block_size], position % block_size
            # [keys, 2, num_kv_heads, D] -> K and V, each [num_kv_heads, keys, D]
            k, v = kv_cache[block, slot].transpose(1, 2, 0, 3)
            scores = packed @ k.swapaxes(-1, -2)
            if position[-1] > first_position:
                scores[:, position > row_position[:, None]] = -np.inf
            state = update(state, scores, v)
        # [num_kv_heads, n * group, D] -> [n, num_heads * D]
        out = finish(state).reshape(num_kv_heads, n, -1).swapaxes(0, 1)
        return out.reshape(n, num_heads * head_size)

"""Lab 04-02: causal attention of many queries, over tiles of keys. Your work: every NotImplementedError.

Names of sizes below: `n` query tokens, `D` numbers per head, `num_heads` query heads, `num_kv_heads` heads of
K and V. Query head `h` reads KV head `h // group`, with `group = num_heads // num_kv_heads`.

The state of lab 04-01 is given, as `mini_vllm` has it. Its `empty` takes a dtype as well, float32 if you name
none, because the engine computes in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.online import State, empty, finish, update

if TYPE_CHECKING:
    from mini_vllm.attention import AttentionMetadata

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]

__all__ = ["State", "empty", "finish", "update"]


class Keys(Protocol):
    """What a program reads of one request: K and V by position."""

    num_kv_heads: int

    def read(self, first: int, last: int) -> tuple[Floats, Floats]:
        """K and V of the positions `first` to `last - 1`, each `[num_kv_heads, last - first, D]`."""


class PagedKeys:
    """`Keys` over the engine's cache and a row of its block table (given)."""

    def __init__(self, kv_cache: Floats, block_ids: Ints) -> None:
        self.kv_cache = kv_cache
        self.block_ids = block_ids
        self.num_kv_heads = kv_cache.shape[3]

    def read(self, first: int, last: int) -> tuple[Floats, Floats]:
        """K and V of the positions `first` to `last - 1`, each `[num_kv_heads, last - first, D]`."""
        number, slot = np.divmod(np.arange(first, last), self.kv_cache.shape[1])
        key, value = self.kv_cache[self.block_ids[number], slot].transpose(1, 2, 0, 3)
        return key, value


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[int]]:
    """Your answers to the four questions of the README, under the names given there."""
    raise NotImplementedError


# ---- rows ----------------------------------------------------------------------------------------


def pack(query: Floats, num_kv_heads: int) -> Floats:
    """The rows that share a KV head, side by side: `[num_kv_heads, n * group, D]` (given).

    The group's heads of the first token come first, then those of the second.

    Args:
        query: `[n, num_heads, D]`.
    """
    n, num_heads, head_size = query.shape
    group = num_heads // num_kv_heads
    by_group = query.reshape(n, num_kv_heads, group, head_size).transpose(1, 0, 2, 3)
    return by_group.reshape(num_kv_heads, n * group, head_size)


def unpack(rows: Floats, n: int) -> Floats:
    """The way back: `[num_kv_heads, n * group, D]` to `[n, num_heads, D]` (given)."""
    num_kv_heads, num_rows, head_size = rows.shape
    group = num_rows // n
    by_group = rows.reshape(num_kv_heads, n, group, head_size).transpose(1, 0, 2, 3)
    return by_group.reshape(n, num_kv_heads * group, head_size)


def row_positions(first: int, n: int, group: int) -> Ints:
    """The position of each packed row's token, `[n * group]`; the first token is at `first`."""
    raise NotImplementedError


def hide_future(scores: Floats, begin: int, position: Ints) -> Floats:
    """The scores, with -inf wherever a key comes after the row's own token.

    Args:
        scores: `[num_kv_heads, rows, keys]`; key i is at position `begin + i`.
        position: `[rows]`.
    """
    raise NotImplementedError


# ---- tiles ---------------------------------------------------------------------------------------


def tile_bounds(first: int, last: int, tile: int) -> tuple[int, int]:
    """For query tokens at the positions `first` to `last`, both included: `(num_full, num_tiles)`.

    Tile t holds the keys from position `t * tile` on. Every one of these tokens sees the whole of each tile
    before number `num_full`, so these need no mask. Of each tile before `num_tiles` some token sees some key.
    The others are not read. Write it without a loop.
    """
    raise NotImplementedError


def attend_tile(query: Floats, keys: Keys, first: int, scale: float, tile: int) -> Floats:
    """Causal attention of neighbouring tokens, each to all tokens up to itself.

    Each tile of keys is read once, for all heads and all of these tokens. The last one ends at the last
    token's position. `hide_future` is called for the tiles that need it, and for no other.

    Args:
        query: `[n, num_heads, D]`; token j is at position `first + j`.
        scale: what a score is multiplied by.
        tile: keys in a tile.

    Returns:
        As `query`, in its dtype.
    """
    raise NotImplementedError


def prefill(
    query: Floats, keys: Keys, start_pos: int, scale: float, query_tile: int, key_tile: int
) -> Floats:
    """Causal attention of a chunk: `query_tile` tokens at a time; the last tile may be smaller.

    Args:
        query: `[n, num_heads, D]`, n at least 1; the first token is at position `start_pos`.
    """
    raise NotImplementedError


# ---- in the engine -------------------------------------------------------------------------------


class CausalAttention:
    """Your loops as the engine's attention. A decoding request is a chunk of one token."""

    query_tile = 16
    key_tile = 32

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Shape of a layer's cache (given). Axis 2 is K, then V."""
        return (num_blocks, block_size, 2, num_kv_heads, head_size)

    def forward(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        kv_cache: Floats,
        attn_metadata: AttentionMetadata,
    ) -> Floats:
        """One layer of one step, for the flat batch: store the new K and V, then attend (given).

        Args:
            query: float32 `[num_tokens, num_heads, D]`.
            key, value: float32 `[num_tokens, num_kv_heads, D]`.
            kv_cache: this layer's. Token i goes to slot `slot_mapping[i]`, counted through the pool: block
                `slot // block_size`, place `slot % block_size`.
            attn_metadata: the step. Request i has the rows `query_start_loc[i]` to `query_start_loc[i + 1]`,
                the newest of its `seq_lens[i]` tokens, and the row `block_table[i]`.

        Returns:
            float32 `[num_tokens, num_heads * D]`. The scale is one over the root of D, the tiles are as large
            as `self.query_tile` and `self.key_tile` say.
        """
        block, slot = np.divmod(attn_metadata.slot_mapping, kv_cache.shape[1])
        kv_cache[block, slot, 0] = key
        kv_cache[block, slot, 1] = value
        out = np.empty_like(query)
        starts = attn_metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
            rows = slice(starts[i], starts[i + 1])
            start_pos = seq_len - (starts[i + 1] - starts[i])
            keys = PagedKeys(kv_cache, attn_metadata.block_table[i])
            out[rows] = prefill(
                query[rows],
                keys,
                start_pos,
                query.shape[-1] ** -0.5,
                self.query_tile,
                self.key_tile,
            )
        return out.reshape(len(query), out[0].size)

"""Lab 04-02: the reference solution."""

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

    def read(self, first: int, last: int) -> tuple[Floats, Floats]: ...


class PagedKeys:
    """`Keys` over the engine's cache and a row of its block table."""

    def __init__(self, kv_cache: Floats, block_ids: Ints) -> None:
        self.kv_cache = kv_cache
        self.block_ids = block_ids
        self.num_kv_heads = kv_cache.shape[3]

    def read(self, first: int, last: int) -> tuple[Floats, Floats]:
        """K and V of the positions `first` to `last - 1`, each `[num_kv_heads, last - first, D]`."""
        number, slot = np.divmod(np.arange(first, last), self.kv_cache.shape[1])
        key, value = self.kv_cache[self.block_ids[number], slot].transpose(1, 2, 0, 3)
        return key, value


def predictions() -> dict[str, list[int]]:
    return {
        "tiles, masked": [528, 32],
        "tiles of both halves": [136, 392],
        "from 2,050: tiles, masked": [37, 4],
        "positions of rows 0, 3, 4, 15": [100, 100, 101, 103],
    }


def pack(query: Floats, num_kv_heads: int) -> Floats:
    n, num_heads, head_size = query.shape
    group = num_heads // num_kv_heads
    by_group = query.reshape(n, num_kv_heads, group, head_size).transpose(1, 0, 2, 3)
    return by_group.reshape(num_kv_heads, n * group, head_size)


def unpack(rows: Floats, n: int) -> Floats:
    num_kv_heads, num_rows, head_size = rows.shape
    group = num_rows // n
    by_group = rows.reshape(num_kv_heads, n, group, head_size).transpose(1, 0, 2, 3)
    return by_group.reshape(n, num_kv_heads * group, head_size)


def row_positions(first: int, n: int, group: int) -> Ints:
    return first + np.arange(n * group) // group


def hide_future(scores: Floats, begin: int, position: Ints) -> Floats:
    future = begin + np.arange(scores.shape[-1]) > position[:, None]
    return np.where(future, scores.dtype.type(-np.inf), scores)


def tile_bounds(first: int, last: int, tile: int) -> tuple[int, int]:
    return (first + 1) // tile, last // tile + 1


def attend_tile(query: Floats, keys: Keys, first: int, scale: float, tile: int) -> Floats:
    n, num_heads, head_size = query.shape
    rows = pack(query, keys.num_kv_heads)
    position = row_positions(first, n, num_heads // keys.num_kv_heads)
    state = empty(rows.shape[:2], head_size, query.dtype.type)
    full, tiles = tile_bounds(first, first + n - 1, tile)
    for number in range(tiles):
        begin = number * tile
        end = min(begin + tile, first + n)
        key, value = keys.read(begin, end)
        scores = rows @ key.transpose(0, 2, 1) * query.dtype.type(scale)
        if number >= full:
            scores = hide_future(scores, begin, position)
        state = update(state, scores, value)
    return unpack(finish(state), n)


def prefill(
    query: Floats, keys: Keys, start_pos: int, scale: float, query_tile: int, key_tile: int
) -> Floats:
    out = np.empty_like(query)
    for at in range(0, len(query), query_tile):
        rows = slice(at, at + query_tile)
        out[rows] = attend_tile(query[rows], keys, start_pos + at, scale, key_tile)
    return out


class CausalAttention:
    """The loops above as the engine's attention."""

    query_tile = 16
    key_tile = 32

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        return (num_blocks, block_size, 2, num_kv_heads, head_size)

    def forward(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        kv_cache: Floats,
        attn_metadata: AttentionMetadata,
    ) -> Floats:
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

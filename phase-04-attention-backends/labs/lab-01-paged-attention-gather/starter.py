"""Lab 04-01: one query over a paged cache, tile by tile. Your work: every NotImplementedError.

Names of sizes below: `D` numbers per head, `num_heads` query heads, `num_kv_heads` heads of K and V. Query
head `h` reads KV head `h // group`, with `group = num_heads // num_kv_heads`. A row is one query head of one
query token. Everything is float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]


class State(NamedTuple):
    """What a row knows of the keys that it has seen.

    Attributes:
        m: `[..., rows]`, the largest score; -inf while no key was seen.
        l: `[..., rows]`, the sum of `exp(score - m)`.
        acc: `[..., rows, D]`, the sum of `exp(score - m) * value`.
    """

    m: Floats
    l: Floats  # noqa: E741, its name in the papers and in vLLM
    acc: Floats


class Memory(Protocol):
    """One request's part of the paged cache (given). It reads, and counts, whatever you ask it for."""

    block_size: int

    def entries(self, numbers: Ints) -> Ints:
        """Entries of the request's row of the block table: block ids, in the shape of `numbers`."""

    def key(self, blocks: Ints, slots: Ints) -> Floats:
        """The K in slot `slots[i]` of block `blocks[i]`: `[n, num_kv_heads, D]`."""

    def value(self, blocks: Ints, slots: Ints) -> Floats:
        """The V in the same slot, likewise."""


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the four questions of the README, under the names given there."""
    raise NotImplementedError


# ---- the state -----------------------------------------------------------------------------------


def empty(rows: tuple[int, ...], head_size: int) -> State:
    """The state of no key.

    Args:
        rows: the shape of `m`, for instance `(num_kv_heads, group)`.
    """
    raise NotImplementedError


def update(state: State, scores: Floats, value: Floats) -> State:
    """The state after one more tile of keys.

    Args:
        state: the one before the tile. It stays as it was: the result is a new one.
        scores: `[..., rows, keys]`, anything up to some 10,000 on either side; -inf hides a key from a row.
            All keys that a row has been given up to now may be hidden from it.
        value: `[..., keys, D]`, finite for hidden keys, too.
    """
    raise NotImplementedError


def finish(state: State) -> Floats:
    """The mean of the values under softmax, `[..., rows, D]`; 0 for a row that has seen no key."""
    raise NotImplementedError


# ---- the loop ------------------------------------------------------------------------------------


def decode(query: Floats, memory: Memory, seq_len: int, scale: float, tile: int) -> Floats:
    """Attention of a request's newest token to all of its tokens.

    Tile number t holds the keys from position `t * tile` on. No more than one tile is held at a time: its K
    is one read, for all heads, and so is its V. The last tile ends with the last token, and nothing outside
    the request is read.

    Args:
        query: `[num_heads, D]`.
        seq_len: tokens of the request, at least 1, the newest included.
        scale: what a score is multiplied by.
        tile: keys in a tile. It has nothing to do with the block size.

    Returns:
        The attention of each head, in the shape of `query`.
    """
    raise NotImplementedError


# ---- what it takes -------------------------------------------------------------------------------


def bytes_read(
    seq_len: int, block_size: int, num_kv_heads: int, head_size: int, element_size: int
) -> tuple[int, int]:
    """What `decode` reads for one token in one layer: bytes of K and V, and bytes of the block table.

    Args:
        element_size: bytes of a number in the cache. An entry of the table is an int32, and counts once
            however often it is looked at.
    """
    raise NotImplementedError


def numbers_held(seq_len: int, rows: int, head_size: int, tile: int) -> tuple[int, int]:
    """How many numbers must be kept while keys go by: with a whole softmax, and with a state.

    Both keep a sum of values for each row. A whole softmax also keeps all scores. A state also keeps what
    else it holds, and the scores of one full tile. Query, K and V are counted in neither.
    """
    raise NotImplementedError

"""The default backend: requests that decode attend together, in tiles of padded rows.

`paged.py` makes some fifteen numpy calls a request and layer; with many short requests the calls
take longer than the arithmetic. Here one gather and one `attend` serve a tile of requests. Measured
side by side on the shipped model (processor time, medians of 80 rounds that alternate): 64 requests
of 96 to 160 tokens take 2.2 times as long in `paged.py`, of 228 to 380 tokens 1.5 times, of
525 to 875 tokens as long. With it `benchmarks.generate` made 0.88 times vLLM's tokens a second at
64 requests, with this file 1.30 times.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.paged import (
    PagedAttention,
    attend,
    attend_request,
    cap_softly,
    reshape_and_cache,
)
from mini_vllm.utils.blas import has_small_matrix_kernels
from mini_vllm.utils.threads import share

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array

    Attend = Callable[[Array, Array, Array, Array | None, float | None], Array]
    """`attend`, or what gives the same."""

TILE_TOKENS = 2048
"""Tokens whose K and V one gather fetches: 1 MiB for 2 KV heads of size 32.

Less makes more numpy calls; more falls out of the L2 cache of a core before the products read it.
Measured at 64 requests of 128, 304 and 700 tokens with 640 to 4096: 640 is slowest (1.2 times), from
2048 on they differ by 3 %.
"""
QUERY_TILE = 128
"""Queries of one prefill chunk scored together. A tile has no scores for keys past its last query,
and a long chunk's scores never stand in memory all at once."""


SHARED = 2**20
"""Multiplications of all tiles from which threads share them: some 0.4 ms of work. With 64 requests of 64 to
192 tokens of the shipped model a second thread gave 1.05 to 1.08 times the tokens a second, with 32 none."""


class Scratch(threading.local):
    """Memory for what a tile gathers, for each thread its own."""

    def __init__(self) -> None:
        self.array = np.empty(0, np.float32)


@dataclass
class DecodeTile:
    """Requests of one query each, padded to the longest.

    Attributes:
        rows: intp `[r]`, their rows in the flat batch.
        block_ids: intp `[r, num_blocks]`; past a request's last block anything.
        bias: float32 `[r, 1, 1, num_blocks * block_size]`, -inf past a request's last token, and before its
            window.
        padding: intp `[p]`, the gathered tokens that this hides, counted through the tile.
    """

    rows: NDArray[np.intp]
    block_ids: NDArray[np.intp]
    bias: Array
    padding: NDArray[np.intp]

    @property
    def num_scores(self) -> int:
        """Of one head."""
        return self.bias.size


@dataclass
class QueryTile:
    """Some queries of one request: rows `start:end` of the flat batch, which see `seq_len` keys."""

    start: int
    end: int
    request: int
    seq_len: int

    @property
    def num_scores(self) -> int:
        """Of one head."""
        return (self.end - self.start) * self.seq_len


@dataclass
class Plan:
    """How a step is cut up: the same for all layers."""

    decode_tiles: list[DecodeTile]
    query_tiles: list[QueryTile]


def make_plan(md: AttentionMetadata) -> Plan:
    """Cut the step into tiles: decodes by length, so that little is padded; chunks by query.

    The work of `vllm/v1/attention/backends/cpu_attn.py:171 CPUAttentionMetadataBuilder.build`,
    where the pieces are work items for threads.
    """
    query_lens = np.diff(md.query_start_loc)
    decodes = np.flatnonzero(query_lens == 1)
    seq_lens, window = md.seq_lens[decodes], md.sliding_window
    if window is not None:  # from the first block of each window on
        first_tokens = np.maximum(seq_lens - window, 0)
        first_blocks = first_tokens // md.block_size
        seq_lens = seq_lens - first_blocks * md.block_size
    order = np.argsort(-seq_lens, kind="stable")
    decodes, seq_lens = decodes[order], seq_lens[order]
    rows = md.query_start_loc[decodes].astype(np.intp)
    block_ids = md.block_table[decodes].astype(np.intp)
    if window is not None:
        block_ids = cut_off_front(block_ids, first_blocks[order], seq_lens, md.block_size)
    positions = np.arange(block_ids.shape[1] * md.block_size)
    hidden = positions >= seq_lens[:, None]
    if window is not None:
        hidden |= positions < (first_tokens % md.block_size)[order][:, None]
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None, None]
    decode_tiles = []
    first = 0
    while first < len(decodes):
        num_blocks = -(-int(seq_lens[first]) // md.block_size)
        keys = num_blocks * md.block_size
        tile = slice(first, first + max(1, TILE_TOKENS // keys))
        decode_tiles.append(
            DecodeTile(
                rows[tile],
                block_ids[tile, :num_blocks],
                bias[tile, ..., :keys],
                np.flatnonzero(hidden[tile, :keys]),
            )
        )
        first = tile.stop
    query_tiles = []
    for request in np.flatnonzero(query_lens > 1).tolist():
        start, end = md.query_start_loc[request : request + 2].tolist()
        for first in range(start, end, QUERY_TILE):
            last = min(first + QUERY_TILE, end)
            seq_len = int(md.seq_lens[request]) - (end - last)
            query_tiles.append(QueryTile(first, last, request, seq_len))
    return Plan(decode_tiles, query_tiles)


def cut_off_front(
    block_ids: NDArray[np.intp],
    first_blocks: NDArray[np.int32],
    seq_lens: NDArray[np.int32],
    block_size: int,
) -> NDArray[np.intp]:
    """Tables without each request's first `first_blocks` entries, as wide as the longest of what is left.

    Args:
        seq_lens: tokens from that block on.
    """
    width = -(-int(seq_lens.max(initial=0)) // block_size)
    columns = first_blocks[:, None] + np.arange(width)
    # Past the end of a shorter one anything will do.
    return np.take_along_axis(block_ids, np.minimum(columns, block_ids.shape[1] - 1), 1)


def attend_by_vectors(
    query: Array, key: Array, value: Array, bias: Array | None, soft_cap: float | None = None
) -> Array:
    """As `attend`, with one product of a matrix and a vector for each query.

    A matrix and a vector are multiplied where they lie; two matrices are copied into another order
    first, and with the 2 queries of a KV head that is most of the time. Measured on the shipped model's
    tiles of 2,048 tokens with OpenBLAS's AVX2 kernels: 164 microseconds for the two products of
    `attend`, 44 for these. At 64 requests `attend` was 39 % of a decode step's processor time there;
    with this, and with `MLP_ROWS`, a round of `benchmarks.generate` took 1.14 s of it instead of 1.49.
    With AVX-512 kernels, which need no copy, it is 27 against 43 microseconds, and `attend` stays.
    """
    scores: Array = (key[..., None, :, :] @ query[..., None])[..., 0]
    if soft_cap is not None:
        scores = cap_softly(scores, soft_cap)
    if bias is not None:
        scores += bias
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    out: Array = (weights[..., None, :] @ value[..., None, :, :])[..., 0, :]
    out /= weights.sum(axis=-1, keepdims=True)
    return out


def choose_attend() -> Attend:
    """The faster of the two on this machine; they differ by rounding."""
    return attend if has_small_matrix_kernels() else attend_by_vectors


class TiledAttention(PagedAttention):
    """`PagedAttention`, faster; a test holds the two equal.

    Tiles are independent, so where they are large, threads share them (`utils/threads.py`).

    Args:
        attend: for the requests that decode; None: `attend` or `attend_by_vectors`, whichever this
            machine's BLAS is better at.
    """

    def __init__(self, attend: Attend | None = None) -> None:
        self._attend = attend or choose_attend()
        self._scratch = Scratch()

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
        plan = attn_metadata.plan
        if not isinstance(plan, Plan):
            plan = attn_metadata.plan = make_plan(attn_metadata)
        num_tokens, num_heads, head_size = query.shape
        output = np.empty((num_tokens, num_heads * head_size), np.float32)
        tiles: list[DecodeTile | QueryTile] = [*plan.decode_tiles, *plan.query_tiles]

        def compute(i: int) -> None:
            self._attend_tile(query, kv_cache, attn_metadata, tiles[i], output)

        work = sum(tile.num_scores for tile in tiles) * num_heads * head_size
        share(compute, len(tiles), alone=work < SHARED)
        return output

    def _attend_tile(
        self,
        query: Array,
        kv_cache: Array,
        md: AttentionMetadata,
        tile: DecodeTile | QueryTile,
        output: Array,
    ) -> None:
        if isinstance(tile, DecodeTile):
            output[tile.rows] = self._attend_decodes(query[tile.rows], kv_cache, tile)
            return
        rows = slice(tile.start, tile.end)
        block_ids = md.block_table[tile.request]
        output[rows] = attend_request(
            query[rows],
            kv_cache,
            block_ids,
            tile.seq_len,
            md.sliding_window,
            self.logits_soft_cap,
        )

    def _attend_decodes(self, query: Array, kv_cache: Array, tile: DecodeTile) -> Array:
        """One query a request, `[r, num_heads, D]`, to `[r, num_heads * D]`."""
        r, num_heads, head_size = query.shape
        num_kv_heads = kv_cache.shape[3]
        kv = self._gather(kv_cache, tile.block_ids).reshape(-1, 2, num_kv_heads, head_size)
        # A slot that was never written may hold NaN, and 0 * NaN is NaN.
        kv[tile.padding] = 0
        # [r, keys, 2, num_kv_heads, D] -> K and V, each [r, num_kv_heads, keys, D]
        k, v = kv.reshape(r, -1, *kv.shape[1:]).transpose(2, 0, 3, 1, 4)
        q = query.reshape(r, num_kv_heads, -1, head_size) * np.float32(head_size**-0.5)
        out = self._attend(q, k, v, tile.bias, self.logits_soft_cap)
        return out.reshape(r, num_heads * head_size)

    def _gather(self, kv_cache: Array, block_ids: NDArray[np.intp]) -> Array:
        """`kv_cache[block_ids]`, always in the same memory, so that it stays in the L2 cache."""
        shape = (*block_ids.shape, *kv_cache.shape[1:])
        size = math.prod(shape)
        scratch = self._scratch
        if size > scratch.array.size:
            scratch.array = np.empty(size, np.float32)
        # "clip": numpy writes to `out` without a copy in between, and any padding will do.
        return kv_cache.take(block_ids, 0, scratch.array[:size].reshape(shape), "clip")

"""How a step's attention is cut up: which rows attend together, and which blocks they read.

The work of ``AttentionMetadataBuilder.build``
(``vllm/v1/attention/backends/cpu_attn.py:171 CPUAttentionMetadataBuilder.build``):
done once a step, used by every layer. There the pieces are work items for threads; here they are
sized for one core's L2 cache and few numpy calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.metadata import AttentionMetadata

TILE_TOKENS = 1280
"""Tokens whose K and V one gather fetches: 640 KiB of scratch for 2 KV heads of size 32.

Less makes more numpy calls; more falls out of the L2 cache of a core before the products read it.
Of 1024, 1280, 1536 and 2048, measured at 64 requests of 100 and of 300 tokens, 1280 was fastest;
2048 took a fifth longer.
"""
QUERY_TILE = 128
"""Queries of one prefill chunk scored together, so a head has QUERY_TILE x TILE_TOKENS scores."""


@dataclass
class Chunk:
    """A run of keys that all rows of a tile read together.

    ``blocks`` is intp ``[rows, n]``, or a slice where one row's blocks lie side by side. ``length``
    counts the keys after the cut at the longest row. ``bias`` is 0 or -inf for the keys from
    ``visible`` on, per row ``[rows, 1, 1, keys]`` or per query ``[queries, keys]``; None hides
    nothing. ``scratch`` takes the gather.
    """

    blocks: NDArray[np.intp] | slice
    length: int
    visible: int = 0
    bias: NDArray[np.float32] | None = None
    scratch: NDArray[np.float32] | None = None


@dataclass
class Tile:
    """Rows ``start:end`` of the (sorted) batch, attended in one go, and the keys that they read.

    Either decodes, one query each of several requests, or several queries of one request.
    """

    start: int
    end: int
    one_request: bool
    chunks: list[Chunk]


class Scratch:
    """One growing buffer. Every gather of a step lands in it, so that it stays in the L2 cache."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.float32)

    def get(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A view of `shape` on the buffer; float32, not initialised."""
        size = math.prod(shape)
        if size > self._buffer.size:
            self._buffer = np.empty(size, np.float32)
        return self._buffer[:size].reshape(shape)


@dataclass
class Plan:
    """What all layers of a step share.

    ``block`` and ``offset`` are the new tokens' slots: integers for one token, int64
    ``[num_tokens]`` for more. ``order`` sorts the rows of the batch by tile; None leaves them.
    """

    block: int | NDArray[np.int64]
    offset: int | NDArray[np.int64]
    order: NDArray[np.intp] | None
    tiles: list[Tile]


def make_plan(md: AttentionMetadata, block_shape: tuple[int, ...], scratch: Scratch) -> Plan:
    """Cut the step into tiles: decodes by length, then prefill chunks by query.

    Args:
        md: the step.
        block_shape: shape of one block of the cache.
        scratch: memory for the gathers; all of the step's share it.
    """
    slots = md.slot_mapping
    one = int(slots[0]) if len(slots) == 1 else slots
    block, offset = divmod(one, md.block_size)
    if md.max_query_len == 1:
        order, tiles = _decode_tiles(md, None)
    else:
        starts = md.query_start_loc.astype(np.intp)
        query_lens = np.diff(starts)
        decodes = np.flatnonzero(query_lens == 1)
        by_length, tiles = _decode_tiles(md, decodes)
        parts = [starts[decodes if by_length is None else decodes[by_length]]]
        at = len(decodes)
        for req in np.flatnonzero(query_lens > 1).tolist():
            length = int(query_lens[req])
            parts.append(np.arange(starts[req], starts[req] + length))
            for first in range(0, length, QUERY_TILE):
                n = min(QUERY_TILE, length - first)
                chunks = _chunks_of_one(md, req, int(md.seq_lens[req]) - length + first, n)
                tiles.append(Tile(at + first, at + first + n, True, chunks))
            at += length
        order = np.concatenate(parts)
    for tile in tiles:
        for chunk in tile.chunks:
            if not isinstance(chunk.blocks, slice):
                chunk.scratch = scratch.get((*chunk.blocks.shape, *block_shape))
    return Plan(block, offset, order, tiles)


def _decode_tiles(
    md: AttentionMetadata, decodes: NDArray[np.intp] | None
) -> tuple[NDArray[np.intp] | None, list[Tile]]:
    """Group `decodes` (None: all requests) into tiles of at most TILE_TOKENS gathered tokens.

    Returns the order in which the tiles take them, longest first so that tiles pad little, or None
    where they stay in place.
    """
    seq_lens, table = md.seq_lens, md.block_table
    if decodes is not None:
        seq_lens, table = seq_lens[decodes], table[decodes]
    num_reqs = len(seq_lens)
    if num_reqs == 1:
        req = 0 if decodes is None else int(decodes[0])
        return None, [Tile(0, 1, False, _chunks_of_one(md, req, int(seq_lens[0]) - 1, 1))]
    if num_reqs == 0:
        return None, []
    block_size = md.block_size
    order = np.argsort(seq_lens, kind="stable")[::-1]
    seq_lens = seq_lens[order]
    blocks: NDArray[np.intp] = table[order].astype(np.intp)
    lengths: list[int] = seq_lens.tolist()
    # A row longer than a tile is on its own and in chunks, so nothing longer needs a bias.
    width = min(lengths[0], TILE_TOKENS)
    past_end = np.arange(width) >= seq_lens[:, None]
    bias = np.where(past_end, np.float32(-np.inf), np.float32(0)).reshape(num_reqs, 1, 1, width)
    tiles = []
    start = 0
    while start < num_reqs:
        longest = lengths[start]
        num_blocks = -(-longest // block_size)
        end = min(num_reqs, start + max(1, TILE_TOKENS // (num_blocks * block_size)))
        if end - start == 1:
            req = int(order[start] if decodes is None else decodes[order[start]])
            chunks = _chunks_of_one(md, req, longest - 1, 1)
        else:
            visible = lengths[end - 1]
            hides = visible < longest
            chunks = [
                Chunk(
                    blocks[start:end, :num_blocks],
                    longest,
                    visible,
                    bias[start:end, ..., visible:longest] if hides else None,
                )
            ]
        tiles.append(Tile(start, end, False, chunks))
        start = end
    return order, tiles


def _chunks_of_one(md: AttentionMetadata, req: int, position: int, num_queries: int) -> list[Chunk]:
    """Keys of one request's queries, the first at `position`, in runs of TILE_TOKENS."""
    num_keys = position + num_queries
    step = max(1, TILE_TOKENS // md.block_size)
    num_blocks = -(-num_keys // md.block_size)
    row = md.block_table[req, :num_blocks].astype(np.intp)
    chunks = []
    for first_block in range(0, num_blocks, step):
        ids = row[first_block : first_block + step]
        first = first_block * md.block_size
        length = min(num_keys - first, len(ids) * md.block_size)
        blocks: NDArray[np.intp] | slice = ids.reshape(1, -1)
        # A request that runs alone mostly holds neighbouring blocks: then the gather is a view.
        low, high = int(ids[0]), int(ids[-1]) + 1
        if high - low == len(ids) and (len(ids) < 3 or bool((ids[1:] - ids[:-1] == 1).all())):
            blocks = slice(low, high)
        chunk = Chunk(blocks, length)
        if first + length - 1 > position:
            chunk.visible = max(0, position + 1 - first)
            keys = np.arange(first + chunk.visible, first + length)
            future = keys > np.arange(position, num_keys)[:, None]
            chunk.bias = np.where(future, np.float32(-np.inf), np.float32(0))
        chunks.append(chunk)
    return chunks

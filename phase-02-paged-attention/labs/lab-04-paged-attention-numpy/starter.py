"""Lab 02-04: the data path of paged attention, in numpy. Your work: every NotImplementedError.

Sizes below: `D` numbers per head, `num_heads` query heads, `num_kv_heads` heads of K and V. Query head
`h` reads KV head `h // group`, with `group = num_heads // num_kv_heads`.

A cache, of K or of V, is `[num_blocks, block_size, num_kv_heads, D]`. It may be a view of something larger,
so its blocks need not lie one after the other in memory. A slot that nobody has written may hold anything,
NaN too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mini_vllm.attention import AttentionMetadata

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]

PAD_SLOT_ID = -1
"""The slot of a row that is no token."""


def predictions() -> dict[str, list[float]]:
    """Your answers to the four questions of the README, under the names that stand there. On paper, first."""
    raise NotImplementedError


# ---- the write map -------------------------------------------------------------------------------


def slot_of(block_ids: Sequence[int] | Ints, position: int, block_size: int) -> int:
    """Where the token at `position` of a request lies.

    Slots are counted through the pool: block 0 has slots 0 to `block_size - 1`, block 1 follows.

    Args:
        block_ids: the request's row of the block table.
    """
    raise NotImplementedError


def slot_mapping(
    block_table: Ints, query_start_loc: Ints, seq_lens: Ints, block_size: int, padded_to: int = 0
) -> NDArray[np.int64]:
    """The slot of every token of a step (given).

    The tokens of all requests lie end to end. Request `i` has the rows from `query_start_loc[i]` to
    `query_start_loc[i + 1]`; they are its newest tokens, and the last of them makes it `seq_lens[i]` long.

    Args:
        block_table: int32 `[num_reqs, max_num_blocks]`.
        query_start_loc: int32 `[num_reqs + 1]`.
        seq_lens: int32 `[num_reqs]`, with the tokens of this step.
        padded_to: rows that the batch is padded to, if it has fewer.

    Returns:
        int64 `[max(num_tokens, padded_to)]`; PAD_SLOT_ID in the rows of the padding.
    """
    num_tokens = int(query_start_loc[-1])
    slots = np.full(max(num_tokens, padded_to), PAD_SLOT_ID, np.int64)
    for i, seq_len in enumerate(seq_lens.tolist()):
        start, end = query_start_loc[i : i + 2].tolist()
        first = seq_len - (end - start)
        for j in range(end - start):
            slots[start + j] = slot_of(block_table[i], first + j, block_size)
    return slots


def write_kv(
    key: Floats, value: Floats, key_cache: Floats, value_cache: Floats, slots: NDArray[np.int64]
) -> None:
    """Write each row's K and V to its slot. Rows whose slot is negative are not written.

    Args:
        key, value: `[num_tokens, num_kv_heads, D]`.
        key_cache, value_cache: written in place.
        slots: int64 `[num_tokens]`, as `slot_mapping` gives them.
    """
    raise NotImplementedError


# ---- the read map, and attention -----------------------------------------------------------------


def gather(cache: Floats, block_ids: Ints, seq_len: int) -> Floats:
    """The K (or V) of a request in the order of its tokens, `[seq_len, num_kv_heads, D]`.

    Args:
        block_ids: int32 `[max_num_blocks]`; it may name more blocks than the request has, and those are not
            to be looked at.
    """
    raise NotImplementedError


def attend(
    query: Floats, key: Floats, value: Floats, scale: float, visible: NDArray[np.bool_]
) -> Floats:
    """Attention over K and V that lie in order (given): `softmax(scale * query . key)` as weights of `value`.

    Args:
        query: `[num_queries, num_heads, D]`.
        key, value: `[num_keys, num_kv_heads, D]`.
        visible: bool `[num_queries, num_keys]`; True in at least one place of each row.

    Returns:
        As `query`. Scores may be in the hundreds; exp must not overflow.
    """
    num_queries, _, head_size = query.shape
    grouped = query.reshape(num_queries, key.shape[1], -1, head_size)
    scores = np.einsum("qhgd,khd->qhgk", grouped, key) * scale
    scores = np.where(visible[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("qhgk,khd->qhgd", weights, value).reshape(query.shape)


def paged_decode(
    query: Floats,
    key_cache: Floats,
    value_cache: Floats,
    block_table: Ints,
    seq_lens: Ints,
    scale: float,
) -> Floats:
    """Given: one query per sequence, its newest token's, over all of its tokens, as lab 02-06's kernel does.

    Args:
        query: `[num_seqs, num_heads, D]`.
        block_table: int32 `[num_seqs, max_num_blocks]`.
        seq_lens: int32 `[num_seqs]`, at least 1, with the token of this step, which is in the cache already.

    Returns:
        As `query`.
    """
    out = np.empty_like(query)
    for i, seq_len in enumerate(seq_lens.tolist()):
        out[i] = paged_prefill(
            query[i : i + 1], key_cache, value_cache, block_table[i], seq_len, scale
        )[0]
    return out


def paged_prefill(
    query: Floats,
    key_cache: Floats,
    value_cache: Floats,
    block_ids: Ints,
    seq_len: int,
    scale: float,
) -> Floats:
    """The newest `len(query)` tokens of one request, each over the tokens up to itself.

    Args:
        query: `[n, num_heads, D]`; `n` is anything from 1 (a decode) to `seq_len` (a whole prompt).
        block_ids: int32 `[max_num_blocks]`.
        seq_len: tokens of the request with these `n`, all of them in the cache already.

    Returns:
        As `query`.
    """
    raise NotImplementedError


class PagedAttention:
    """Your functions as the engine's attention."""

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Shape of a layer's cache (given). Axis 2 is K, then V, so `kv_cache[:, :, 0]` is a cache of K."""
        return (num_blocks, block_size, 2, num_kv_heads, head_size)

    def forward(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        kv_cache: Floats,
        attn_metadata: AttentionMetadata,
    ) -> Floats:
        """One layer of one step (given): store the new K and V, then attend, request by request.

        Args:
            query: float32 `[num_tokens, num_heads, D]`.
            key, value: float32 `[num_tokens, num_kv_heads, D]`.
            kv_cache: this layer's, shaped by `get_kv_cache_shape`.
            attn_metadata: the step: `query_start_loc`, `seq_lens`, `block_table`, `slot_mapping`, as above.

        Returns:
            float32 `[num_tokens, num_heads * D]`. The scale is one over the root of D.
        """
        key_cache, value_cache = kv_cache[:, :, 0], kv_cache[:, :, 1]
        write_kv(key, value, key_cache, value_cache, attn_metadata.slot_mapping)
        out = np.empty_like(query)
        starts = attn_metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
            rows = slice(starts[i], starts[i + 1])
            out[rows] = paged_prefill(
                query[rows],
                key_cache,
                value_cache,
                attn_metadata.block_table[i],
                seq_len,
                query.shape[-1] ** -0.5,
            )
        return out.reshape(len(query), -1)


# ---- one pass ------------------------------------------------------------------------------------


class OnlineSoftmax:
    """A weighted mean under softmax, of scores that come in pieces. A piece is seen once.

    Attributes:
        maximum: `[num_heads]`, the largest score up to now.
        denominator: `[num_heads]`, the sum of `exp(score - maximum)` up to now.
        weighted: `[num_heads, D]`, the sum of `exp(score - maximum) * value` up to now.
    """

    def __init__(self, num_heads: int, head_size: int) -> None:
        self.maximum = np.full(num_heads, -np.inf)
        self.denominator = np.zeros(num_heads)
        self.weighted = np.zeros((num_heads, head_size))

    def add(self, scores: Floats, value: Floats) -> None:
        """Take in one more piece.

        Args:
            scores: `[num_heads, n]`; minus infinity weighs nothing. Each head has a finite one in the first
                piece.
            value: `[n, num_heads, D]`.
        """
        raise NotImplementedError

    def output(self) -> Floats:
        """The weighted mean of all values up to now, `[num_heads, D]`."""
        raise NotImplementedError


def paged_decode_one_pass(
    query: Floats,
    key_cache: Floats,
    value_cache: Floats,
    block_table: Ints,
    seq_lens: Ints,
    scale: float,
) -> Floats:
    """`paged_decode` without `gather`: block after block, and never a copy of more than one."""
    raise NotImplementedError

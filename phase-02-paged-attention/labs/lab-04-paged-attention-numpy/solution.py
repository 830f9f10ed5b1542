"""Lab 02-04: the data path of paged attention, in numpy."""

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


def predictions() -> dict[str, list[float]]:
    return {
        "slots of Ada's prompt": [28, 29, 30, 31, 8, 9, 10, 11, 20, 21],
        "slots of the decode step": [22, 39],
        "rows read, and of these read twice": [23, 8],
        "denominator after each piece": [1.5, 1.75],
    }


def slot_of(block_ids: Sequence[int] | Ints, position: int, block_size: int) -> int:
    block_number, offset = divmod(position, block_size)
    return int(block_ids[block_number]) * block_size + offset


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
    real = slots >= 0
    block_id, offset = np.divmod(slots[real], key_cache.shape[1])
    key_cache[block_id, offset] = key[real]
    value_cache[block_id, offset] = value[real]


def gather(cache: Floats, block_ids: Ints, seq_len: int) -> Floats:
    block_size = cache.shape[1]
    num_blocks = -(-seq_len // block_size)
    rows = cache[block_ids[:num_blocks]].reshape(-1, *cache.shape[2:])
    return rows[:seq_len]


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
    position = np.arange(seq_len - len(query), seq_len)
    visible = np.arange(seq_len) <= position[:, None]
    key = gather(key_cache, block_ids, seq_len)
    value = gather(value_cache, block_ids, seq_len)
    return attend(query, key, value, scale, visible)


class PagedAttention:
    """Your functions as the engine's attention."""

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


class OnlineSoftmax:
    """A weighted mean under softmax, of scores that come in pieces."""

    def __init__(self, num_heads: int, head_size: int) -> None:
        self.maximum = np.full(num_heads, -np.inf)
        self.denominator = np.zeros(num_heads)
        self.weighted = np.zeros((num_heads, head_size))

    def add(self, scores: Floats, value: Floats) -> None:
        maximum = np.maximum(self.maximum, scores.max(axis=1))
        rescale = np.exp(self.maximum - maximum)
        weights = np.exp(scores - maximum[:, None])
        self.denominator = self.denominator * rescale + weights.sum(axis=1)
        self.weighted = self.weighted * rescale[:, None] + np.einsum("hk,khd->hd", weights, value)
        self.maximum = maximum

    def output(self) -> Floats:
        return self.weighted / self.denominator[:, None]


def paged_decode_one_pass(
    query: Floats,
    key_cache: Floats,
    value_cache: Floats,
    block_table: Ints,
    seq_lens: Ints,
    scale: float,
) -> Floats:
    _, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out = np.empty_like(query)
    for i, seq_len in enumerate(seq_lens.tolist()):
        state = OnlineSoftmax(num_heads, head_size)
        for number, first in enumerate(range(0, seq_len, block_size)):
            block, tokens = block_table[i, number], min(block_size, seq_len - first)
            key = key_cache[block, :tokens].repeat(group, axis=1)
            value = value_cache[block, :tokens].repeat(group, axis=1)
            state.add(np.einsum("hd,khd->hk", query[i], key) * scale, value)
        out[i] = state.output()
    return out

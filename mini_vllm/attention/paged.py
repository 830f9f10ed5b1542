"""Paged attention written for the reader."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.metadata import AttentionMetadata


def paged_attention_reference(
    query: NDArray[np.float32],
    kv_cache: NDArray[np.float32],
    attn_metadata: AttentionMetadata,
    dtype: Any = np.float32,
) -> NDArray[Any]:
    """Paged attention written for the reader: one request, one block at a time, online softmax.

    The recurrence is that of FlashAttention (Dao et al., 2022, algorithm 1) over the blocks of
    PagedAttention (Kwon et al., 2023, section 4.1). It only reads: store K and V first.

    Args:
        query: ``[num_tokens, num_heads, head_size]``.
        kv_cache: one layer's cache, shaped by `PagedAttention.get_kv_cache_shape`.
        attn_metadata: the step.
        dtype: type of all arithmetic; ``np.float64`` gives a reference for float32 paths.

    Returns:
        ``[num_tokens, num_heads * head_size]`` in `dtype`.
    """
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = kv_cache.shape[3]
    block_size = attn_metadata.block_size
    group = num_heads // num_kv_heads
    out = np.zeros((num_tokens, num_heads, head_size), dtype)
    for i, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
        start, end = attn_metadata.query_start_loc[i : i + 2].tolist()
        # [kv_head, query, group, head_size]: the heads of a group read the same K and V.
        q = query[start:end].reshape(end - start, num_kv_heads, group, head_size)
        q = q.swapaxes(0, 1).astype(dtype) * dtype(head_size**-0.5)
        position = np.arange(seq_len - (end - start), seq_len)
        running_max = np.full((*q.shape[:3], 1), -np.inf, dtype)
        running_sum = np.zeros_like(running_max)
        acc = np.zeros_like(q)
        for first in range(0, seq_len, block_size):
            block_id = attn_metadata.block_table[i, first // block_size]
            valid = min(block_size, seq_len - first)
            # [token, K or V, kv_head, D] -> K and V, each [kv_head, token, D]
            k, v = kv_cache[block_id, :valid].astype(dtype).transpose(1, 2, 0, 3)
            scores = np.einsum("hqgd,hkd->hqgk", q, k)
            hidden = np.arange(first, first + valid)[None, :] > position[:, None]
            scores[:, hidden[:, None, :].repeat(group, 1)] = -np.inf
            new_max = np.maximum(running_max, scores.max(-1, keepdims=True))
            # A block that lies wholly in a query's future leaves its maximum where it was: block 0
            # is never such a block, so new_max is finite from the first round on.
            rescale = np.exp(running_max - new_max)
            p = np.exp(scores - new_max)
            running_sum = running_sum * rescale + p.sum(-1, keepdims=True)
            acc = acc * rescale + np.einsum("hqgk,hkd->hqgd", p, v)
            running_max = new_max
        out[start:end] = (
            (acc / running_sum).swapaxes(0, 1).reshape(end - start, num_heads, head_size)
        )
    return out.reshape(num_tokens, num_heads * head_size)

"""The plain backend: one request after the other, its K and V gathered through the block table.

This is the form to read; `tiled.py` does the same for several requests at once. It stands where
vLLM's CPU backend stands (`vllm/v1/attention/backends/cpu_attn.py:89 CPUAttentionBackend.get_kv_cache_shape`
for the cache's shape). All arithmetic is float32.

Shapes below: D numbers a head, `group` query heads share one KV head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.metadata import AttentionMetadata

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array


def reshape_and_cache(
    key: Array,
    value: Array,
    kv_cache: Array,
    slot_mapping: NDArray[np.int64],
) -> None:
    """Write each token's K and V to its slot
    (`vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:319 triton_reshape_and_cache_flash`).

    Args:
        key, value: float32 `[num_tokens, num_kv_heads, D]`.
        kv_cache: one layer's cache, `[num_blocks, block_size, 2, num_kv_heads, D]`.
        slot_mapping: int64 `[num_tokens]`, `block_id * block_size + offset`.
    """
    block_id, offset = np.divmod(slot_mapping, kv_cache.shape[1])
    kv_cache[block_id, offset, 0] = key
    kv_cache[block_id, offset, 1] = value


def attend(
    query: Array, key: Array, value: Array, bias: Array | None, soft_cap: float | None = None
) -> Array:
    """`softmax(query @ key.T + bias) @ value`, for each leading index.

    Args:
        query: float32 `[..., m, D]`, scaled already.
        key, value: float32 `[..., keys, D]`; leading axes may broadcast.
        bias: float32, broadcasts to `[..., m, keys]`: -inf hides a key, 0 leaves it; None hides
            nothing. No query may have all its keys hidden.
        soft_cap: keeps the scores between minus this and this; None: they stay as they are.

    Returns:
        float32 `[..., m, D]`.
    """
    scores = query @ key.swapaxes(-1, -2)
    if soft_cap is not None:
        scores = cap_softly(scores, soft_cap)
    if bias is not None:
        scores += bias
    # A constant added to a row changes nothing, so exp gets numbers that cannot overflow.
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    out: Array = weights @ value / weights.sum(axis=-1, keepdims=True)
    return out


def cap_softly(scores: Array, soft_cap: float) -> Array:
    """`soft_cap * tanh(scores / soft_cap)` (Gemma Team, 2024, section 2), in place."""
    scores /= np.float32(soft_cap)
    np.tanh(scores, out=scores)
    scores *= np.float32(soft_cap)
    return scores


def attend_request(
    query: Array,
    kv_cache: Array,
    block_ids: NDArray[np.int32],
    seq_len: int,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Array:
    """Causal attention of one request's newest tokens to all of its tokens
    (`vllm/v1/attention/ops/triton_unified_attention.py:179 kernel_unified_attention`).

    Args:
        query: float32 `[n, num_heads, D]`, the last n of the request's `seq_len` tokens.
        kv_cache: one layer's cache; it holds all of them already.
        block_ids: `[max_blocks]`, the request's row of the block table.
        seq_len: tokens of the request up to the last query.
        sliding_window: tokens that a query attends to at most, itself among them; None: all before it.
        soft_cap: as for `attend`.

    Returns:
        float32 `[n, num_heads * D]`.
    """
    n, num_heads, head_size = query.shape
    _, block_size, _, num_kv_heads, _ = kv_cache.shape
    num_blocks = -(-seq_len // block_size)
    # The first token that any of the queries sees: the first one's window reaches back the farthest.
    first = 0 if sliding_window is None else max(0, seq_len - n - sliding_window + 1)
    first_block, in_block = divmod(first, block_size)
    # [num_blocks, block_size, 2, ...] -> [keys, 2, ...]: the last block may be partly filled.
    kv = kv_cache[block_ids[first_block:num_blocks]].reshape(-1, 2, num_kv_heads, head_size)
    kv = kv[in_block : in_block + seq_len - first]
    # [num_kv_heads, 1, keys, D]: one K and V for all query heads of a group.
    k, v = kv.transpose(1, 2, 0, 3)[:, :, None]
    # [n, num_heads, D] -> [num_kv_heads, group, n, D]
    q = query.reshape(n, num_kv_heads, -1, head_size).transpose(1, 2, 0, 3)
    position = np.arange(seq_len - n, seq_len)[:, None]
    key_position = np.arange(first, seq_len)
    hidden = key_position > position
    if sliding_window is not None:
        hidden |= key_position <= position - sliding_window
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0)) if n > 1 else None
    out = attend(q * np.float32(head_size**-0.5), k, v, bias, soft_cap)
    return out.transpose(2, 0, 1, 3).reshape(n, num_heads * head_size)


class PagedAttention:
    """Paged attention in plain form (Kwon et al., 2023, section 4.1).

    `supports_sliding_window` and `supports_logits_soft_cap` are what a model with windows, or with a cap on
    its scores, asks a backend; one without the name has none
    (`vllm/v1/attention/backend.py:55 AttentionBackend`).

    Attributes:
        logits_soft_cap: what such a model sets: scores stay between minus this and this.
    """

    supports_sliding_window = True
    supports_logits_soft_cap = True
    logits_soft_cap: float | None = None

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Shape of one layer's cache: `[num_blocks, block_size, 2, num_kv_heads, head_size]`.

        The third axis is K, then V. A block is one run of memory, because the gather costs more
        than the arithmetic and copies run by run: for the shipped model 8 KiB here, 2 KiB where K,
        V and the heads each have their own region, as upstream
        (`vllm/v1/attention/backends/cpu_attn.py:89 CPUAttentionBackend.get_kv_cache_shape`).
        """
        return (num_blocks, block_size, 2, num_kv_heads, head_size)

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """Store this step's K and V, then attend, causally, for every row of the flat batch
        (`vllm/v1/attention/backends/cpu_attn.py:292 CPUAttentionBackendImpl.forward`).

        Args:
            query: float32 `[num_tokens, num_heads, head_size]`.
            key, value: float32 `[num_tokens, num_kv_heads, head_size]`.
            kv_cache: one layer's cache, shaped by `get_kv_cache_shape`; written in place.
            attn_metadata: the step.

        Returns:
            float32 `[num_tokens, num_heads * head_size]`.
        """
        reshape_and_cache(key, value, kv_cache, attn_metadata.slot_mapping)
        num_tokens, num_heads, head_size = query.shape
        output = np.empty((num_tokens, num_heads * head_size), np.float32)
        query_start_loc = attn_metadata.query_start_loc.tolist()
        window, cap = attn_metadata.sliding_window, self.logits_soft_cap
        for i, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
            start, end = query_start_loc[i], query_start_loc[i + 1]
            block_ids = attn_metadata.block_table[i]
            attended = attend_request(query[start:end], kv_cache, block_ids, seq_len, window, cap)
            output[start:end] = attended
        return output

"""Decode attention over a paged cache in torch: the reference that kernels are held against.

It gathers a sequence's K and V through the block table into one piece and takes a softmax over all
of it. That is what a kernel avoids, because the copy reads and writes every byte once more. Nothing
here is fast.

Shapes, for every function of this file and of `kernels/`:

    query                    [num_seqs, num_heads, head_size]
    key_cache, value_cache   [num_blocks, block_size, num_kv_heads, head_size]
    block_table              int32 [num_seqs, max_num_blocks]; past a sequence's last block: anything
    seq_lens                 int32 [num_seqs]: tokens, the one of this step included; at least 1

Query heads `h * G .. h * G + G - 1` share KV head `h` (G = num_heads / num_kv_heads).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gather(cache: Tensor, blocks: Tensor, seq_len: int) -> Tensor:
    """One sequence's K or V in order, as a copy.

    Args:
        cache: `[num_blocks, block_size, num_kv_heads, head_size]`.
        blocks: integers `[max_num_blocks]`, the sequence's row of the block table.
        seq_len: tokens in the sequence.

    Returns:
        `[seq_len, num_kv_heads, head_size]`, in the cache's dtype.
    """
    block_size = cache.shape[1]
    needed = blocks[: -(-seq_len // block_size)].long()
    return cache[needed].flatten(0, 1)[:seq_len]


def paged_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Attention of each sequence's newest token to all of its tokens.

    Args:
        query, key_cache, value_cache, block_table, seq_lens: see the top of the file.
        scale: what a score is multiplied by, mostly `head_size ** -0.5`.
        dtype: what the arithmetic is done in.

    Returns:
        `[num_seqs, num_heads, head_size]` in `dtype`: not rounded to the query's dtype, so that a kernel's
        own rounding can be seen.
    """
    num_kv_heads = key_cache.shape[2]
    out = torch.empty(query.shape, dtype=dtype, device=query.device)
    for i, seq_len in enumerate(seq_lens.tolist()):
        key = gather(key_cache, block_table[i], seq_len).to(dtype)
        value = gather(value_cache, block_table[i], seq_len).to(dtype)
        # [num_heads, D] -> [num_kv_heads, G, D]: the g heads of a group meet the same keys.
        grouped = query[i].to(dtype).unflatten(0, (num_kv_heads, -1))
        scores = torch.einsum("hgd,khd->hgk", grouped, key) * scale
        out[i] = torch.einsum("hgk,khd->hgd", scores.softmax(-1), value).flatten(0, 1)
    return out


def least_bytes(
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    element_size: int,
) -> int:
    """Bytes that any kernel must move for one call: each input read once, the result written once.

    K and V of every token, the query, the result, the entries of the block table that are in use (4 bytes
    each) and the lengths. The K and V are nearly all of it: at 1,024 tokens, 8 KV heads of 128 numbers in
    16 bits and 32 query heads, 4,194,304 of 4,210,948 bytes.
    """
    tokens = sum(seq_lens)
    kv = 2 * tokens * num_kv_heads * head_size * element_size
    query_and_out = 2 * len(seq_lens) * num_heads * head_size * element_size
    table = 4 * sum(-(-n // block_size) for n in seq_lens)
    return kv + query_and_out + table + 4 * len(seq_lens)

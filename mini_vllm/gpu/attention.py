"""Attention over a paged cache in torch: the reference that kernels are held against.

It gathers a sequence's K and V through the block table into one piece and takes a softmax over all
of it. That is what a kernel avoids, because the copy reads and writes every byte once more. Nothing
here is fast.

Shapes, for every function of this file and of `kernels/`:

    query                    [num_tokens, num_heads, head_size]; in decode num_tokens is num_seqs
    key_cache, value_cache   [num_blocks, block_size, num_kv_heads, head_size]
    block_table              int32 [num_seqs, max_num_blocks]; past a sequence's last block: anything
    seq_lens                 int32 [num_seqs]: tokens, those of this step included; at least 1
    query_start_loc          int32 [num_seqs + 1]: sequence i has the query rows from entry i to entry
                             i + 1, its last tokens in order

Query heads `h * G .. h * G + G - 1` share KV head `h` (G = num_heads / num_kv_heads).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gather(cache: Tensor, blocks: Tensor, seq_len: int, first: int = 0) -> Tensor:
    """One sequence's K or V in order, as a copy.

    Args:
        cache: `[num_blocks, block_size, num_kv_heads, head_size]`.
        blocks: integers `[max_num_blocks]`, the sequence's row of the block table.
        seq_len: tokens in the sequence.
        first: the first of them that is wanted. No block before its own is read.

    Returns:
        `[seq_len - first, num_kv_heads, head_size]`, in the cache's dtype.
    """
    block_size = cache.shape[1]
    first_block, end_block = first // block_size, -(-seq_len // block_size)
    needed = blocks[first_block:end_block].long()
    start = first_block * block_size
    return cache[needed].flatten(0, 1)[first - start : seq_len - start]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    dtype: torch.dtype = torch.float64,
    sliding_window: int | None = None,
) -> Tensor:
    """Causal attention for any mix: whole prompts, chunks that start mid-sequence, decodes.

    Token j of a chunk of n, at the end of a sequence of s, stands at position `s - n + j` and sees the
    keys up to there. Rows that no sequence has come out as 0.

    Args:
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc: see the top of the file.
        scale: what a score is multiplied by, mostly `head_size ** -0.5`.
        dtype: what the arithmetic is done in.
        sliding_window: keys that a query sees at most, its own among them; None: all before it. What stands
            in the table before the first query's window is not read.

    Returns:
        `[num_tokens, num_heads, head_size]` in `dtype`: not rounded to the query's dtype, so that a kernel's
        own rounding can be seen.
    """
    num_kv_heads = key_cache.shape[2]
    out = torch.zeros(query.shape, dtype=dtype, device=query.device)
    starts = query_start_loc.tolist()
    for i, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[i], starts[i + 1])
        num_queries = starts[i + 1] - starts[i]
        first = 0
        if sliding_window is not None:
            first = max(0, seq_len - num_queries - sliding_window + 1)
        key = gather(key_cache, block_table[i], seq_len, first).to(dtype)
        value = gather(value_cache, block_table[i], seq_len, first).to(dtype)
        # [n, num_heads, D] -> [n, num_kv_heads, G, D]: the g heads of a group meet the same keys.
        grouped = query[rows].to(dtype).unflatten(1, (num_kv_heads, -1))
        scores = torch.einsum("qhgd,khd->hgqk", grouped, key) * scale
        position = torch.arange(first, seq_len, device=query.device)
        of_query = torch.arange(seq_len - num_queries, seq_len, device=query.device)[:, None]
        hidden = position > of_query
        if sliding_window is not None:
            hidden |= position <= of_query - sliding_window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hgqk,khd->qhgd", weights, value).flatten(1, 2)
    return out


def paged_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Attention of each sequence's newest token to all of its tokens: `paged_attention`, where every
    chunk has one token.

    Returns:
        `[num_seqs, num_heads, head_size]` in `dtype`.
    """
    starts = torch.arange(len(seq_lens) + 1, dtype=torch.int32)
    return paged_attention(
        query, key_cache, value_cache, block_table, seq_lens, starts, scale, dtype
    )


def paged_decode_fixed(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    dtype: torch.dtype = torch.float32,
    sliding_window: int | None = None,
) -> Tensor:
    """`paged_decode` for a CUDA graph: no loop, no question to the device, no shape that depends on a value.

    It gathers every sequence as long as its row of the table has room for, and hides what is past its end,
    and before its window. A sequence of no tokens, which fills up a batch, comes out as 0.

    Returns:
        `[num_seqs, num_heads, head_size]` in `dtype`.
    """
    block_size, num_kv_heads = key_cache.shape[1:3]
    width = block_table.shape[1]
    # Past a sequence's last block a table holds anything: block 0 is read in its place.
    begins = torch.arange(width, device=query.device) * block_size
    used = begins < seq_lens[:, None]
    position = torch.arange(width * block_size, device=query.device)
    hidden = position >= seq_lens[:, None]
    if sliding_window is not None:
        used &= begins + block_size > seq_lens[:, None] - sliding_window
        hidden |= position < seq_lens[:, None] - sliding_window
    blocks = torch.where(used, block_table, 0).long()
    key, value = (cache[blocks].flatten(1, 2).to(dtype) for cache in (key_cache, value_cache))
    grouped = query.to(dtype).unflatten(1, (num_kv_heads, -1))  # [num_seqs, num_kv_heads, G, D]
    scores = torch.einsum("shgd,skhd->shgk", grouped, key) * scale
    # Not -inf: a row in which all is hidden would be 0/0. And no V of a stranger, which may be NaN.
    scores = scores.masked_fill(hidden[:, None, None], torch.finfo(dtype).min)
    weights = scores.softmax(-1).masked_fill(hidden[:, None, None], 0)
    value = value.masked_fill(hidden[:, :, None, None], 0)
    return torch.einsum("shgk,skhd->shgd", weights, value).flatten(1, 2)


def least_bytes(
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    element_size: int,
    query_lens: Sequence[int] | None = None,
) -> int:
    """Bytes that any kernel must move for one call: each input read once, the result written once.

    K and V of every token, the query, the result, the entries of the block table that are in use (4 bytes
    each) and the lengths. In decode, where `query_lens` is None, the K and V are nearly all of it: at 1,024
    tokens, 8 KV heads of 128 numbers in 16 bits and 32 query heads, 4,194,304 of 4,210,948 bytes.

    A chunk's kernel asks for more than this: each of its programs reads all keys that its tokens see. Where
    the L2 cache holds them, memory is asked once.
    """
    kv = 2 * sum(seq_lens) * num_kv_heads * head_size * element_size
    tokens = len(seq_lens) if query_lens is None else sum(query_lens)
    query_and_out = 2 * tokens * num_heads * head_size * element_size
    table = 4 * sum(-(-n // block_size) for n in seq_lens)
    lengths = len(seq_lens) + (0 if query_lens is None else len(query_lens) + 1)
    return kv + query_and_out + table + 4 * lengths


def least_flops(
    seq_lens: Sequence[int], query_lens: Sequence[int], num_heads: int, head_size: int
) -> int:
    """Multiplications and additions of the two matrix products, over visible keys alone.

    Token j of a chunk of n, at the end of a sequence of s, sees `s - n + j + 1` keys, and each of them
    costs a head `2 * head_size` for its score and as many for its V. A prompt of 1,000 tokens has 500,500
    pairs of a token and a key; what a kernel computes of the other half and masks is not work done.
    """
    pairs = sum(n * (s - n) + n * (n + 1) // 2 for s, n in zip(seq_lens, query_lens, strict=True))
    return 4 * pairs * num_heads * head_size

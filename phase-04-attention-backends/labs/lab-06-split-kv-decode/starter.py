"""Lab 04-06: decode attention with split keys and a merge, in Triton.

Two kernels are yours: `split_kernel`, then `merge_kernel`. Given are the function that starts them and three
that `split_kernel` calls: they load the query, load K and V of a tile, and take a tile into the softmax. Lab
02-06's README says what Triton is.

Shapes; every last axis has stride 1, all other strides are arguments, counted in numbers, not bytes:

    query, out               [num_seqs, num_heads, head_size]
    key_cache, value_cache   [num_blocks, block_size, num_kv_heads, head_size]
    block_table              int32 [num_seqs, width]
    seq_lens                 int32 [num_seqs]: tokens of each sequence, this step's included; at least 1

and what the first kernel leaves for the second, float32 and without gaps:

    part_acc                 [num_seqs, num_heads, num_splits, head_size]
    part_max, part_sum       [num_seqs, num_heads, num_splits]

Split i of a sequence has its keys `i * keys_per_split` to `(i + 1) * keys_per_split - 1`, or up to its
last. There are as many splits as the table has room for, so most sequences have splits without a key.

Slots that no sequence has written may hold anything, even NaN, and so do entries of the table past a
sequence's last block. head_size and block_size are powers of two. The dtype is float32 or float16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E). A GPU has an instruction for 2 ** x."""


@triton.jit
def load_query(
    query_ptr,
    seq,
    kv_head,
    query_stride_seq,
    query_stride_head,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
):
    """A sequence's query for the heads that share a KV head, [ROWS, HEAD_SIZE]. Given.

    Row r is query head kv_head * GROUP + r. Rows past GROUP are zeros.
    """
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_SIZE)
    head = kv_head * GROUP + row
    query_at = seq * query_stride_seq + head[:, None] * query_stride_head + dim[None, :]
    return tl.load(query_ptr + query_at, mask=(row < GROUP)[:, None], other=0.0)


@triton.jit
def load_tile(
    key_cache_ptr,
    value_cache_ptr,
    table_ptr,
    position,
    valid,
    kv_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """K and V of one KV head for a tile of keys, [TILE, HEAD_SIZE] each. Given: the loads of lab 02-06.

    Args:
        table_ptr: where the sequence's row of the block table begins.
        position: [TILE], which keys.
        valid: [TILE], which of them to load. The others come as zeros, and nothing is read for them.
    """
    dim = tl.arange(0, HEAD_SIZE)
    block = tl.load(table_ptr + position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
    slot = position % BLOCK_SIZE
    key_at = block * key_stride_block + slot * key_stride_slot + kv_head * key_stride_head
    key = tl.load(key_cache_ptr + key_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0)
    value_at = block * value_stride_block + slot * value_stride_slot + kv_head * value_stride_head
    value = tl.load(
        value_cache_ptr + value_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0
    )
    return key, value


@triton.jit
def softmax_step(scores, value, largest, total, acc):
    """The online softmax of lab 02-06, one tile further. Given.

    Args:
        scores: [ROWS, TILE], times scale_log2; -inf where a key must not count.
        value: [TILE, HEAD_SIZE], no NaN where a score is -inf.
        largest, total: [ROWS], float32; before the first tile -inf and 0.
        acc: [ROWS, HEAD_SIZE], float32; before the first tile 0.

    Returns:
        largest, total and acc with the tile in them. acc is not divided by total.
    """
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    rescale = tl.exp2(largest - new_largest)
    weight = tl.exp2(scores - new_largest[:, None])
    total = total * rescale + tl.sum(weight, 1)
    acc = acc * rescale[:, None]
    acc += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return new_largest, total, acc


@triton.jit
def split_kernel(
    part_acc_ptr,
    part_max_ptr,
    part_sum_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    scale_log2,
    keys_per_split,
    query_stride_seq,
    query_stride_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    table_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """The state of one split of one sequence, for the query heads that share a KV head.

    Program (s, h, i): sequence s, KV head h with its query heads h * GROUP to h * GROUP + GROUP - 1, split
    i. A split without a key stores nothing.

    It is `decode_kernel` of lab 02-06 with another beginning and another end. The loop starts at the
    split's first key and ends at its last; what the last tile has beyond that is the next split's, and
    must not count here. Scores, [ROWS, TILE], by tl.dot with input_precision="ieee". Instead of the result,
    the three running values of each row are stored as they are: its largest score, times scale_log2 as
    `softmax_step` wants it, its sum, its accumulator, not divided.

    keys_per_split need not be a multiple of TILE, or of BLOCK_SIZE. ROWS is GROUP rounded up to a power of
    two, at least 16; the rows past GROUP are padding and must store nothing.
    """
    raise NotImplementedError


@triton.jit
def merge_kernel(
    out_ptr,
    part_acc_ptr,
    part_max_ptr,
    part_sum_ptr,
    seq_lens_ptr,
    keys_per_split,
    num_splits,
    out_stride_seq,
    out_stride_head,
    HEAD_SIZE: tl.constexpr,
):
    """One query head of one sequence, from the states of its splits.

    Program (s, h): sequence s, query head h. Reads the states of the splits that have a key, and no others:
    no program has stored the rest. Merges them as lab 04-03 does, and stores out[s, h] in out's dtype.

    part_max counts in powers of two, as scale_log2 has made the scores: tl.exp2 of a difference of two
    of them is the factor.
    """
    raise NotImplementedError


def split_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    keys_per_split: int,
) -> Tensor:
    """Start `split_kernel`, then `merge_kernel` on what it leaves. Given."""
    num_seqs, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    group = num_heads // num_kv_heads
    # The lengths lie on the GPU, so there are as many splits as the table has room for.
    num_splits = triton.cdiv(block_table.shape[1] * block_size, keys_per_split)
    out = query.new_empty(query.shape)
    parts = (num_seqs, num_heads, num_splits)
    part_acc = query.new_empty((*parts, head_size), dtype=torch.float32)
    part_max = query.new_empty(parts, dtype=torch.float32)
    part_sum = query.new_empty(parts, dtype=torch.float32)
    split_kernel[num_seqs, num_kv_heads, num_splits](
        part_acc, part_max, part_sum, query, key_cache, value_cache, block_table, seq_lens,
        scale * LOG2_E, keys_per_split,
        *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)),
        HEAD_SIZE=head_size, BLOCK_SIZE=block_size, TILE=32,
    )  # fmt: skip
    merge_kernel[num_seqs, num_heads](
        out, part_acc, part_max, part_sum, seq_lens, keys_per_split, num_splits, *out.stride()[:2],
        HEAD_SIZE=head_size,
    )  # fmt: skip
    return out

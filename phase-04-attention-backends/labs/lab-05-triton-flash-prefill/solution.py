"""Lab 04-05, reference solution: causal prefill over a paged cache, in Triton.

No torch is imported: a launcher needs nothing of it but the tensors that it is given.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

Tensor = Any
LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E). A GPU has an instruction for 2 ** x."""


@triton.jit
def load_tile(
    key_cache_ptr,
    value_cache_ptr,
    table_ptr,
    key_position,
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
        key_position: [TILE], which keys.
        valid: [TILE], which of them to load. The others come as zeros, and nothing is read for them.
    """
    dim = tl.arange(0, HEAD_SIZE)
    block = tl.load(table_ptr + key_position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
    slot = key_position % BLOCK_SIZE
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
        scores: [ROWS, TILE], times scale_log2; -inf where a row must not see a key.
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
def prefill_kernel(
    out_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    scale_log2,
    out_stride_token,
    out_stride_head,
    query_stride_token,
    query_stride_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    table_stride,
    GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """`BLOCK_Q` tokens of one chunk, for the query heads of one KV head, up to their causal frontier."""
    kv_head = tl.program_id(1)
    seq = tl.program_id(2)
    start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - start
    first_token = tl.program_id(0) * BLOCK_Q
    if first_token >= query_len:
        return
    context_len = tl.load(seq_lens_ptr + seq) - query_len

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_SIZE)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    mine = (row < BLOCK_Q * GROUP) & (token < query_len)
    query_at = (start + token) * query_stride_token + head * query_stride_head
    query = tl.load(query_ptr + query_at[:, None] + dim[None, :], mask=mine[:, None], other=0.0)

    position = context_len + token
    end = context_len + tl.minimum(first_token + BLOCK_Q, query_len)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_SIZE], tl.float32)
    for first in range(0, end, TILE):
        key_position = first + tl.arange(0, TILE)
        valid = key_position < end
        key, value = load_tile(
            key_cache_ptr, value_cache_ptr, block_table_ptr + seq * table_stride,
            key_position, valid, kv_head,
            key_stride_block, key_stride_slot, key_stride_head,
            value_stride_block, value_stride_slot, value_stride_head, HEAD_SIZE, BLOCK_SIZE,
        )  # fmt: skip
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        visible = key_position[None, :] <= position[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        largest, total, acc = softmax_step(scores, value, largest, total, acc)

    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    out_at = (start + token) * out_stride_token + head * out_stride_head
    tl.store(out_ptr + out_at[:, None] + dim[None, :], out, mask=mine[:, None])


def paged_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
) -> Tensor:
    """Start `prefill_kernel`, a program for each block of tokens, KV head and sequence. Given."""
    _, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    group = num_heads // num_kv_heads
    rows = 32
    block_q = rows // group
    longest = int(query_start_loc.diff().max())  # on a GPU this waits for the lengths
    out = query.new_empty(query.shape)
    prefill_kernel[triton.cdiv(longest, block_q), num_kv_heads, len(seq_lens)](
        out, query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale * LOG2_E,
        *out.stride()[:2], *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, BLOCK_Q=block_q, ROWS=rows,
        HEAD_SIZE=head_size, BLOCK_SIZE=block_size, TILE=32, num_warps=8,
    )  # fmt: skip
    return out

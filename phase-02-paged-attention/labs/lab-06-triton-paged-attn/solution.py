"""Lab 02-06, reference solution: decode attention over a paged cache, in Triton.

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
def softmax_step(largest, total, acc, scores, value, valid):
    """The three running values after one more block of keys."""
    scores = tl.where(valid, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 0))
    rescale = tl.exp2(largest - new_largest)
    weight = tl.exp2(scores - new_largest)
    total = total * rescale + tl.sum(weight, 0)
    acc = acc * rescale + tl.sum(weight[:, None] * value.to(tl.float32), 0)
    return new_largest, total, acc


@triton.jit
def decode_one_kernel(
    out_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_len,
    scale_log2,
    out_stride_head,
    query_stride_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Attention of one head of one sequence. Program h computes head h; K and V have as many heads. Given.

    seq_len is a number here, the other pointers and strides are as the top of the file says. scale_log2
    is scale * LOG2_E: a score times that can go straight into tl.exp2.

    The block's id is made int64, because an id times a stride may pass two billion.
    """
    head = tl.program_id(0)
    dim = tl.arange(0, HEAD_SIZE)
    slot = tl.arange(0, BLOCK_SIZE)
    query = tl.load(query_ptr + head * query_stride_head + dim).to(tl.float32)

    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_SIZE], tl.float32)
    for i in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + i).to(tl.int64)
        valid = i * BLOCK_SIZE + slot < seq_len
        key_at = block * key_stride_block + slot * key_stride_slot + head * key_stride_head
        key = tl.load(
            key_cache_ptr + key_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0
        )
        value_at = block * value_stride_block + slot * value_stride_slot + head * value_stride_head
        value = tl.load(
            value_cache_ptr + value_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0
        )

        scores = tl.sum(key.to(tl.float32) * query[None, :], 1) * scale_log2
        largest, total, acc = softmax_step(largest, total, acc, scores, value, valid)

    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + head * out_stride_head + dim, out)


def paged_decode_one(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_len: int,
    scale: float,
) -> Tensor:
    """Start `decode_one_kernel`, one program per head. Given."""
    num_heads, head_size = query.shape
    out = query.new_empty(query.shape)
    decode_one_kernel[(num_heads,)](
        out, query, key_cache, value_cache, block_table, seq_len, scale * LOG2_E,
        out.stride(0), query.stride(0), *key_cache.stride()[:3], *value_cache.stride()[:3],
        HEAD_SIZE=head_size, BLOCK_SIZE=key_cache.shape[1],
    )  # fmt: skip
    return out


@triton.jit
def decode_kernel(
    out_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    scale_log2,
    out_stride_seq,
    out_stride_head,
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
    """Attention of one sequence's query heads that share a KV head, `TILE` keys at a time."""
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + seq)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_SIZE)
    in_group = (row < GROUP)[:, None]
    head = kv_head * GROUP + row
    query_at = seq * query_stride_seq + head[:, None] * query_stride_head + dim[None, :]
    query = tl.load(query_ptr + query_at, mask=in_group, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_SIZE], tl.float32)
    for first in range(0, seq_len, TILE):
        position = first + tl.arange(0, TILE)
        valid = position < seq_len
        entry = block_table_ptr + seq * table_stride + position // BLOCK_SIZE
        block = tl.load(entry, mask=valid, other=0).to(tl.int64)
        slot = position % BLOCK_SIZE
        key_at = block * key_stride_block + slot * key_stride_slot + kv_head * key_stride_head
        key = tl.load(
            key_cache_ptr + key_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0
        )
        value_at = (
            block * value_stride_block + slot * value_stride_slot + kv_head * value_stride_head
        )
        value = tl.load(
            value_cache_ptr + value_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0
        )

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        scores = tl.where(valid[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        rescale = tl.exp2(largest - new_largest)
        weight = tl.exp2(scores - new_largest[:, None])
        total = total * rescale + tl.sum(weight, 1)
        acc = acc * rescale[:, None]
        acc += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        largest = new_largest

    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    out_at = seq * out_stride_seq + head[:, None] * out_stride_head + dim[None, :]
    tl.store(out_ptr + out_at, out, mask=in_group)


def paged_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    """Start `decode_kernel`, one program for each sequence and KV head. Given."""
    num_seqs, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    group = num_heads // num_kv_heads
    out = query.new_empty(query.shape)
    decode_kernel[num_seqs, num_kv_heads](
        out, query, key_cache, value_cache, block_table, seq_lens, scale * LOG2_E,
        *out.stride()[:2], *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)),
        HEAD_SIZE=head_size, BLOCK_SIZE=block_size, TILE=32,
    )  # fmt: skip
    return out

"""Lab 02-06: decode attention over a paged cache, in Triton.

Yours are `softmax_step`, the heart of `decode_one_kernel`, and then the whole of `decode_kernel`. The rest of
`decode_one_kernel` is given, and so are the two functions that start the kernels. What Triton is stands in
the README.

Shapes; every last axis has stride 1, all other strides are arguments, counted in numbers, not bytes:

    query, out               [num_seqs, num_heads, head_size]     (decode_one: [num_heads, head_size])
    key_cache, value_cache   [num_blocks, block_size, num_kv_heads, head_size]
    block_table              int32 [num_seqs, width]              (decode_one: [blocks of the sequence])
    seq_lens                 int32 [num_seqs]: tokens of each sequence, this step's included; at least 1

Token t of a sequence lies in block `table[t // block_size]`, slot `t % block_size`. Slots that no sequence
has written hold anything, NaN too, and so do entries of the table past a sequence's last block.

head_size and block_size are powers of two. The dtype is float32 or float16; add up in float32.
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
    """The three running values after one more block of keys, for one head.

    largest and total are numbers, acc is [HEAD_SIZE], all float32: the README has you derive what each
    becomes. scores [BLOCK_SIZE] may go straight into tl.exp2; value [BLOCK_SIZE, HEAD_SIZE] is in the cache's
    dtype. valid [BLOCK_SIZE] is False for the slots past the sequence's end, where both loads were masked and
    gave 0. At least one slot is valid.

    Returns largest, total and acc, in this order.
    """
    raise NotImplementedError


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
    """Attention of one sequence's query heads that share a KV head. Program (s, h): sequence s, KV head h.

    GROUP query heads share a KV head: h * GROUP to h * GROUP + GROUP - 1. ROWS is GROUP rounded up to a
    power of two, at least 16, so that tl.dot can use tensor cores. Rows past GROUP are padding: they must
    read nothing that matters and write nothing, for the heads behind yours are another program's.

    TILE keys are taken at a time, and TILE has nothing to do with BLOCK_SIZE: a tile may lie inside a
    block or reach over many, so each key of it finds its own block and slot. The table is read only where the
    sequence has tokens.

    Recipe: as in `decode_one_kernel`, with a row for each query head. Query [ROWS, HEAD_SIZE]; K and V of a
    tile [TILE, HEAD_SIZE]; scores [ROWS, TILE] by tl.dot. The running values get one more axis, and each row
    has its own maximum. The second tl.dot wants both operands in one dtype, the cache's. Pass
    input_precision="ieee" to both: a GPU would round float32 to 10 bits otherwise.
    """
    raise NotImplementedError


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

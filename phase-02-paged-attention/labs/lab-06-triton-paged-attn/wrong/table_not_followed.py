"""The table is not followed: block i of the sequence is taken for block i of the pool.

It works as long as a sequence lies in the first blocks, in order, as in a pool that was never used.
The i-th entry of the table is the block's place.

Refused by `test_one_sequence_is_right`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from course.learner.labs import load_solution

solution = load_solution(__file__)


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
    head = tl.program_id(0)
    dim = tl.arange(0, HEAD_SIZE)
    slot = tl.arange(0, BLOCK_SIZE)
    query = tl.load(query_ptr + head * query_stride_head + dim).to(tl.float32)

    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_SIZE], tl.float32)
    for i in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = i
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
        scores = tl.where(valid, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 0))
        rescale = tl.exp2(largest - new_largest)
        weight = tl.exp2(scores - new_largest)
        total = total * rescale + tl.sum(weight, 0)
        acc = acc * rescale + tl.sum(weight[:, None] * value.to(tl.float32), 0)
        largest = new_largest

    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + head * out_stride_head + dim, out)


solution.decode_one_kernel = decode_one_kernel  # the launcher is the solution's


def __getattr__(name: str) -> Any:
    return getattr(solution, name)

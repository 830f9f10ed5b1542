"""Lab 07-04: the product of a mixture of experts, in Triton.

`moe_kernel` is yours. Given is the function that starts it. What Triton is stands in lab 02-06's README, the
list in lab 07-03's.

Shapes; the last axis of each has stride 1:

    x               [rows, inputs], float16 or float32
    w               [experts, outputs, inputs], x's dtype
    topk_weights    float32, a number for each pair, or None
    sorted_pairs    int32, the pair of each row of the blocks, or None
    block_experts   int32, the expert of each block
    num_padded      int32 [1], the rows of the blocks in use
    out             [pairs, outputs], x's dtype, without gaps
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def moe_kernel(
    out_ptr,
    x_ptr,
    w_ptr,
    topk_weights_ptr,
    sorted_pairs_ptr,
    block_experts_ptr,
    num_padded_ptr,
    num_pairs,
    outputs,
    inputs,
    x_stride,
    expert_stride,
    output_stride,
    TOP_K: tl.constexpr,
    HAS_LIST: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_N outputs of one block of pairs: `out[pair] = x[pair // TOP_K] @ w[expert].T`, times its weight.

    Program (j, b): outputs j * BLOCK_N and following, of block b. There are as many programs as the list has
    room for; those of a block from num_padded on must end without loading anything more.

    Find the block's pairs: with HAS_LIST entries b * BLOCK_M and following of sorted_pairs; else pair b in
    the first lane and num_pairs in the others. A pair of num_pairs does not exist: nothing may be loaded or
    stored for its lane. Find the block's expert, one number. Then walk over the inputs, BLOCK_K at a time:
    gather the rows of x, load the tile of the expert's weights, and add up in float32, with
    tl.dot(x, w, sums, input_precision="ieee"). With HAS_WEIGHTS multiply by the pairs' topk_weights. Store
    each row at its pair.

    num_pairs, outputs, inputs: how many there are; the last two need not be multiples of their tiles. The
    strides count elements from one row of x, one expert, one output of an expert to the next. A row's or an
    expert's number times its stride may exceed 2**31: make both tl.int64. BLOCK_M, BLOCK_N and BLOCK_K are
    powers of two, at least 16.
    """
    raise NotImplementedError


def compute_capability() -> int:
    """The GPU that Triton compiles for, as 80 or 90; 90 where there is none (the interpreter). Given."""
    try:
        return int(triton.runtime.driver.active.get_current_target().arch)
    except RuntimeError:
        return 90


def moe_gemm(
    x: Tensor,
    w: Tensor,
    topk_weights: Tensor | None,
    sorted_pairs: Tensor | None,
    block_experts: Tensor,
    num_padded: Tensor,
    top_k: int,
    block_size: int,
) -> Tensor:
    """Start `moe_kernel` for every block that there is room for. Given."""
    _, outputs, inputs = w.shape
    num_pairs = len(x) * top_k
    tensor_cores = x.dtype != torch.float32 and compute_capability() >= 80
    block_n = 64
    block_k = 64 if tensor_cores else 32  # larger ones spill where there are none
    out = x.new_empty(num_pairs, outputs)
    moe_kernel[(triton.cdiv(outputs, block_n), len(block_experts))](
        out, x, w, topk_weights, sorted_pairs, block_experts, num_padded,
        num_pairs, outputs, inputs, x.stride(0), w.stride(0), w.stride(1),
        TOP_K=top_k, HAS_LIST=sorted_pairs is not None, HAS_WEIGHTS=topk_weights is not None,
        BLOCK_M=block_size, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out

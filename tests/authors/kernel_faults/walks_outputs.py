"""A correct grouped product: one program for a block, which walks over its outputs."""

import triton
import triton.language as tl


@triton.jit
def walks_outputs(
    y_ptr, x_ptr, w_ptr, scale_ptr, pairs_ptr, experts_ptr, end_ptr, num_pairs, outputs, inputs,
    x_stride, w_stride, row_stride,
    PER_ROW: tl.constexpr, ALONE: tl.constexpr, SCALED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    me = tl.program_id(0)
    if me * M >= tl.load(end_ptr):
        return
    m = tl.arange(0, M)
    if ALONE:
        pair = tl.where(m == 0, me, num_pairs)
    else:
        pair = tl.load(pairs_ptr + me * M + m)
    ok = pair < num_pairs
    w_ptr += tl.load(experts_ptr + me).to(tl.int64) * w_stride
    rows = x_ptr + (pair[:, None] // PER_ROW).to(tl.int64) * x_stride
    scale = tl.full([M], 1.0, tl.float32)
    if SCALED:
        scale = tl.load(scale_ptr + pair, mask=ok, other=0.0)
    for n0 in range(0, outputs, N):
        n = n0 + tl.arange(0, N)
        acc = tl.zeros([M, N], dtype=tl.float32)
        for k0 in range(0, inputs, K):
            k = k0 + tl.arange(0, K)
            a = tl.load(rows + k[None, :], mask=ok[:, None] & (k < inputs)[None, :], other=0.0)
            b_mask = (n < outputs)[:, None] & (k < inputs)[None, :]
            b = tl.load(w_ptr + n[:, None] * row_stride + k[None, :], mask=b_mask, other=0.0)
            acc = tl.dot(a, tl.trans(b), acc, input_precision="ieee")
        acc *= scale[:, None]
        to = y_ptr + pair[:, None].to(tl.int64) * outputs + n[None, :]
        tl.store(to, acc.to(y_ptr.dtype.element_ty), mask=ok[:, None] & (n < outputs)[None, :])


def moe_gemm(x, w, topk_weights, sorted_pairs, block_experts, num_padded, top_k, block_size):
    y = x.new_empty(x.shape[0] * top_k, w.shape[1])
    walks_outputs[(block_experts.shape[0],)](
        y, x, w, topk_weights, sorted_pairs, block_experts, num_padded, y.shape[0], w.shape[1], w.shape[2],
        x.stride(0), w.stride(0), w.stride(1),
        PER_ROW=top_k, ALONE=sorted_pairs is None, SCALED=topk_weights is not None,
        M=block_size, N=64, K=32, num_warps=4,
    )  # fmt: skip
    return y

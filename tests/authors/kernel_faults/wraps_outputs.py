"""A correct grouped product: outputs modulo N instead of a mask, pointers that move, wide tiles."""

import torch
import triton
import triton.language as tl


@triton.jit
def wraps_outputs(
    x, w, y, routing, order, owner, end, pairs, N, K, sx, se, sn,
    TOP: tl.constexpr, ORDERED: tl.constexpr, ROUTED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    if b * BM >= tl.load(end):
        return
    i = tl.arange(0, BM)
    p = pairs + i * 0
    if ORDERED:
        p = tl.load(order + b * BM + i)
    else:
        p = tl.where(i == 0, b, p)
    p = p.to(tl.int64)
    valid = p < pairs
    e = tl.load(owner + b).to(tl.int64)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    px = x + (p // TOP)[:, None] * sx + k[None, :]
    pw = w + e * se + (j % N)[None, :] * sn + k[:, None]
    acc = tl.zeros([BM, BN], tl.float32)
    left = K
    while left > 0:
        a = tl.load(px, mask=valid[:, None] & (k < left)[None, :], other=0.0)
        c = tl.load(pw, mask=(k < left)[:, None], other=0.0)
        acc += tl.dot(a, c, input_precision="ieee")
        px += BK
        pw += BK
        left -= BK
    if ROUTED:
        acc *= tl.load(routing + p, mask=valid, other=0.0)[:, None]
    tl.store(
        y + p[:, None] * N + j[None, :],
        acc.to(y.dtype.element_ty),
        mask=valid[:, None] & (j < N)[None, :],
    )


def moe_gemm(x, w, topk_weights, sorted_pairs, block_experts, num_padded, top_k, block_size):
    _, outputs, inputs = w.shape
    pairs = x.size(0) * top_k
    y = torch.empty((pairs, outputs), dtype=x.dtype)
    wraps_outputs[(block_experts.numel(), triton.cdiv(outputs, 64))](
        x, w, y, topk_weights, sorted_pairs, block_experts, num_padded, pairs, outputs, inputs,
        x.stride(0), w.stride(0), w.stride(1),
        TOP=top_k, ORDERED=sorted_pairs is not None, ROUTED=topk_weights is not None,
        BM=block_size, BN=64, BK=32, num_warps=4,
    )  # fmt: skip
    return y

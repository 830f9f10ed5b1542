"""A correct grouped product: as many programs as processors, each of which takes tile after tile."""

import torch
import triton
import triton.language as tl


@triton.jit
def shares_experts(
    y, x, w, factors, order, owner, end, pairs, N, K, x_row, w_expert, w_row,
    TOP_K: tl.constexpr, ORDERED: tl.constexpr, WEIGHTED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BN)
    tiles = tl.load(end) // BM * across
    lane = tl.arange(0, BM)
    k = tl.arange(0, BK)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        block = tile // across
        n = tile % across * BN + tl.arange(0, BN)
        if ORDERED:
            pair = tl.load(order + block * BM + lane)
        else:
            pair = tl.where(lane == 0, block, pairs)
        pair = pair.to(tl.int64)
        real = pair < pairs
        x_at = x + (pair // TOP_K * x_row)[:, None] + k[None, :]
        w_at = w + tl.load(owner + block).to(tl.int64) * w_expert + n[None, :] * w_row + k[:, None]
        total = tl.zeros([BM, BN], tl.float32)
        for begin in range(0, K, BK):
            live = k < K - begin
            a = tl.load(x_at + begin, mask=real[:, None] & live[None, :], other=0.0)
            b = tl.load(w_at + begin, mask=(n < N)[None, :] & live[:, None], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        if WEIGHTED:
            total *= tl.load(factors + pair, mask=real, other=0.0)[:, None]
        tl.store(
            y + pair[:, None] * N + n[None, :],
            total.to(y.dtype.element_ty),
            mask=real[:, None] & (n < N)[None, :],
        )


def moe_gemm(x, w, topk_weights, sorted_pairs, block_experts, num_padded, top_k, block_size):
    _, outputs, inputs = w.shape
    pairs = x.shape[0] * top_k
    y = torch.empty(pairs, outputs, dtype=x.dtype, device=x.device)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = len(block_experts) * triton.cdiv(outputs, 64)
    shares_experts[(min(processors, tiles),)](
        y, x, w, topk_weights, sorted_pairs, block_experts, num_padded, pairs, outputs, inputs,
        x.stride(0), w.stride(0), w.stride(1),
        TOP_K=top_k, ORDERED=sorted_pairs is not None, WEIGHTED=topk_weights is not None,
        BM=block_size, BN=64, BK=32, num_warps=4,
    )  # fmt: skip
    return y

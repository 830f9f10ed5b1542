"""A correct grouped product: weights on the left, one axis of programs, blocks of one expert side by side."""

import torch
import triton
import triton.language as tl


@triton.jit
def experts_left(
    x_ptr, w_ptr, y_ptr, weights_ptr, list_ptr, experts_ptr, used_ptr, pairs, N, K, x_row, w_expert, w_row,
    SHARE: tl.constexpr, LISTED: tl.constexpr, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, COLUMNS)
    block = tl.program_id(0) // across
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    used = tl.load(used_ptr)
    if block * ROWS < used:
        slot = block * ROWS + tl.arange(0, ROWS)
        if LISTED:
            pair = tl.load(list_ptr + slot)
        else:
            pair = tl.where(slot % ROWS == 0, block, pairs)
        exists = pair < pairs
        whose = tl.load(experts_ptr + block).to(tl.int64)
        inside = column < N
        total = tl.zeros([COLUMNS, ROWS], tl.float32)
        for begin in range(0, K, TILE):
            k = begin + tl.arange(0, TILE)
            live = k < K
            w_at = whose * w_expert + column[:, None] * w_row + k[None, :]
            w = tl.load(w_ptr + w_at, mask=inside[:, None] & live[None, :], other=0.0)
            x_at = (pair // SHARE).to(tl.int64)[None, :] * x_row + k[:, None]
            x = tl.load(x_ptr + x_at, mask=exists[None, :] & live[:, None], other=0.0)
            total += tl.dot(w, x, input_precision="ieee")
        if WEIGHTED:
            weight = tl.load(weights_ptr + pair, mask=exists, other=0.0)
            total = total * weight[None, :]
        y_at = pair[None, :] * N + column[:, None]
        tl.store(
            y_ptr + y_at,
            total.to(y_ptr.dtype.element_ty),
            mask=exists[None, :] & inside[:, None],
        )


def moe_gemm(x, w, topk_weights, sorted_pairs, block_experts, num_padded, top_k, block_size):
    _, N, K = w.shape
    pairs = len(x) * top_k
    y = torch.empty(pairs, N, dtype=x.dtype)
    grid = (triton.cdiv(N, 64) * len(block_experts),)
    experts_left[grid](
        x, w, y, topk_weights, sorted_pairs, block_experts, num_padded, pairs, N, K,
        x.stride(0), w.stride(0), w.stride(1),
        SHARE=top_k, LISTED=sorted_pairs is not None, WEIGHTED=topk_weights is not None,
        ROWS=block_size, COLUMNS=64, TILE=32, num_warps=4,
    )  # fmt: skip
    return y

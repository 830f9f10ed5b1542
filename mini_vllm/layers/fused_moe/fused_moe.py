"""The experts of one layer, twice: one after the other, and grouped.

Mirrors `vllm/model_executor/layers/fused_moe/cpu_fused_moe.py`, whose form in torch sorts as `fused_experts`
does. Left out: biases, activations other than SiLU.

Shapes below: n tokens of H numbers, E experts of I inner numbers, k experts per token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.backend import Array
from mini_vllm.layers.activation import silu_and_mul


def reference_experts(
    x: Array, w13: Array, w2: Array, topk_weights: Array, topk_ids: NDArray[np.integer]
) -> Array:
    """Each expert computes its tokens, and adds what it says of them, times its weight.

    A mask picks each expert's tokens, so nothing has to be sorted. The engine does not run this form: it is
    the one to read first, and the one that `fused_experts` is tested against.

    Args:
        x: float32 `[n, H]`.
        w13: float32 `[E, H, 2 I]`, gate and up side by side.
        w2: float32 `[E, I, H]`.
        topk_weights: float32 `[n, k]`.
        topk_ids: integers `[n, k]`, an expert at most once in a row.

    Returns:
        float32 `[n, H]`.
    """
    out = np.zeros_like(x)
    for expert in range(len(w13)):
        tokens, place = np.nonzero(topk_ids == expert)
        if len(tokens):
            hidden = silu_and_mul(x[tokens] @ w13[expert])
            out[tokens] += topk_weights[tokens, place, None] * (hidden @ w2[expert])
    return out


def fused_experts(
    x: Array, w13: Array, w2: Array, topk_weights: Array, topk_ids: NDArray[np.integer]
) -> Array:
    """`reference_experts`, its tokens sorted by expert first, so that an expert's are neighbours.

    The n k pairs of a token and an expert are numbered row by row. `order` lists them by expert, and is the
    one thing that is sorted: it gathers the rows on the way in and puts them back on the way out. Then one
    activation serves all experts, and the sum over k is a sum over an axis.

    An id of E stands for an expert that another rank has. Such pairs come last, and give zeros.

    Source: `vllm/model_executor/layers/fused_moe/cpu_fused_moe.py:428 cpu_fused_moe_torch`.
    """
    n, k = topk_ids.shape
    flat = topk_ids.ravel()
    order = flat.argsort(kind="stable")
    ends = np.bincount(flat, minlength=len(w13))[: len(w13)].cumsum().tolist()
    gathered = x[order // k]
    gate_up = np.empty((n * k, w13.shape[2]), np.float32)
    down = np.empty_like(gathered)
    gate_up[ends[-1] :] = down[ends[-1] :] = 0

    start = 0
    for expert, end in enumerate(ends):
        if end > start:
            np.matmul(gathered[start:end], w13[expert], out=gate_up[start:end])
        start = end
    hidden = silu_and_mul(gate_up)
    start = 0
    for expert, end in enumerate(ends):
        if end > start:
            np.matmul(hidden[start:end], w2[expert], out=down[start:end])
        start = end

    outputs = np.empty_like(down)
    outputs[order] = down
    of_tokens: Array = (outputs.reshape(n, k, -1) * topk_weights[:, :, None]).sum(axis=1)
    return of_tokens

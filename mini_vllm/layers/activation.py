"""What stands between the two halves of an MLP.

Mirrors `vllm/model_executor/layers/activation.py`. Left out: every activation but SiLU.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention.backend import Array


def silu_and_mul(gate_up: Array) -> Array:
    """`silu(gate) * up`, `[n, size]`, from the two side by side, `[n, 2 * size]`
    (`vllm/model_executor/layers/activation.py:138 SiluAndMul.forward_native`).

    `silu(g) = g / (1 + exp(-g))`: far below zero exp overflows to infinity, and the quotient is the
    0 that it should be.
    """
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :size], gate_up[:, size:]
    with np.errstate(over="ignore"):
        activated: Array = gate / (1 + np.exp(-gate)) * up
    return activated

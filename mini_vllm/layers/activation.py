"""What stands between the two halves of an MLP.

Mirrors `vllm/model_executor/layers/activation.py`. Left out: every activation but SiLU and GELU by tanh.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array


def silu_and_mul(gate_up: Array) -> Array:
    """`silu(gate) * up`, `[n, size]`, from the two side by side, `[n, 2 * size]`
    (`vllm/model_executor/layers/activation.py:138 SiluAndMul.forward_native`).

    `silu(g) = g / (1 + exp(-g))`: far below zero exp overflows to infinity, and the quotient is the
    0 that it should be.
    """
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :size], gate_up[:, size:]
    # gate / (1 + exp(-gate)) * up, in one array: each new one of this size comes from the system afresh.
    activated: Array = np.negative(gate)
    with np.errstate(over="ignore"):
        np.exp(activated, out=activated)
    activated += 1
    np.divide(gate, activated, out=activated)
    activated *= up
    return activated


def gelu_tanh_and_mul(gate_up: Array) -> Array:
    """`gelu(gate) * up`, as `silu_and_mul`; GELU is approximated with tanh
    (`vllm/model_executor/layers/activation.py:355 GeluAndMul.forward_native`)."""
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :size], gate_up[:, size:]
    inner = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate * gate * gate)
    activated: Array = np.float32(0.5) * gate * (1 + np.tanh(inner)) * up
    return activated

"""The norm in front of attention and MLP.

Mirrors `vllm/model_executor/layers/layernorm.py`. Left out: the sum with the residual in the same kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array


class RMSNorm:
    """Each row divided by its root mean square, then scaled (Zhang and Sennrich, 2019)
    (`vllm/model_executor/layers/layernorm.py:38 RMSNorm`)."""

    def __init__(self, weight: Array, eps: float) -> None:
        self.weight = np.asarray(weight)
        self.eps = np.float32(eps)

    def __call__(self, x: Array) -> Array:
        """float32 `[n, hidden_size]` to the same
        (`vllm/model_executor/layers/layernorm.py:82 RMSNorm.forward_native`)."""
        variance = (x * x).sum(axis=-1, keepdims=True) / x.shape[-1]
        normed: Array = x / np.sqrt(variance + self.eps)
        normed *= self.weight
        return normed


class GemmaRMSNorm(RMSNorm):
    """Scaled by `1 + weight`: what is stored is how far the scale is from 1
    (`vllm/model_executor/layers/layernorm.py:133 GemmaRMSNorm`)."""

    def __init__(self, weight: Array, eps: float) -> None:
        super().__init__(weight + np.float32(1), eps)

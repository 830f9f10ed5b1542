"""Rotary position embedding: a head's numbers, turned in pairs by the token's position.

Mirrors `vllm/model_executor/layers/rotary_embedding/`. Left out: YaRN, dynamic NTK, mrope, partial rotation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention.backend import Array

if TYPE_CHECKING:
    from mini_vllm.config.model import LlamaConfig


def rope_inv_freq(config: LlamaConfig) -> Array:
    """Radians per position of each of the `head_dim / 2` rotated pairs, float32.

    Plain RoPE: Su et al., 2021. `linear` divides every frequency by `factor`. `llama3`
    divides the low ones, keeps the high ones and blends between
    (`vllm/model_executor/layers/rotary_embedding/llama3_rope.py:33 Llama3RotaryEmbedding._compute_inv_freq`).
    Single precision all the way, as there: in float64 the angles at position 1000 differ by 1e-5.
    """
    dim = config.head_dim
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    inv_freq: Any = np.float32(1.0) / np.power(np.float32(config.rope_theta), exponent)
    scaling = config.rope_scaling
    if config.rope_type == "linear":
        inv_freq = inv_freq / np.float32(scaling["factor"])
    if config.rope_type == "llama3":
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * inv_freq / np.float32(2 * math.pi)  # in the original context length
        blend = np.clip((turns - low) / (high - low), 0, 1) if low != high else turns > low
        inv_freq = inv_freq * (blend + (1 - blend) / scaling["factor"])
    return np.asarray(inv_freq, np.float32)


def apply_rotary_emb(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each pair `(x[i], x[i + D / 2])` of each head by its position's angle.

    Args:
        x: float32 `[n, heads, D]`.
        cos, sin: float32 `[n, 1, D / 2]`, of `position * inv_freq`.

    Source: `vllm/model_executor/layers/rotary_embedding/common.py:144 ApplyRotaryEmb.forward_static`.
    """
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate((x1 * cos - x2 * sin, x2 * cos + x1 * sin), axis=-1)

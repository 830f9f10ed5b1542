"""Rotary position embedding: a head's numbers, turned in pairs by the token's position.

Mirrors `vllm/model_executor/layers/rotary_embedding/`. Upstream keeps a table of all positions, here angles
are computed for those of a step. Left out: the kinds for several modalities, pairs of neighbours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.config.rope import dynamic_growth, yarn_mscale

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array
    from mini_vllm.config.model import LlamaConfig


def rope_inv_freq(config: LlamaConfig, max_model_len: int | None = None) -> Array:
    """Radians per position of each of the `rotary_dim / 2` rotated pairs, float32
    (`vllm/model_executor/layers/rotary_embedding/base.py:69 RotaryEmbeddingBase._compute_inv_freq`).

    Plain RoPE: Su et al., 2021. Single precision all the way, as upstream: in float64 the angles at position
    1000 differ by 1e-5.

    Args:
        max_model_len: the longest text that is served; only `longrope` asks for it. None:
            `config.default_max_model_len`.
    """
    dim = config.rotary_dim
    theta = config.rope_theta
    if config.rope_type == "dynamic":
        growth = dynamic_growth(config.rope_scaling, config.max_position_embeddings)
        theta *= growth ** (dim / (dim - 2)) if dim > 2 else 1.0
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    periods = np.power(np.float32(theta), exponent)
    scale = _SCALINGS.get(config.rope_type)
    if scale is None:
        return np.asarray(np.float32(1.0) / periods, np.float32)
    return np.asarray(
        scale(config, periods, max_model_len or config.default_max_model_len), np.float32
    )


def rope_mscale(config: LlamaConfig, max_model_len: int | None = None) -> float:
    """What cosines and sines are multiplied by: 1 but for `yarn` and `longrope`."""
    scaling = config.rope_scaling
    if config.rope_type == "yarn":
        return yarn_mscale(scaling)
    if config.rope_type != "longrope":
        return 1.0
    given = scaling.get(f"{_long_or_short(config, max_model_len)}_mscale")
    if given is not None:
        return float(given)
    original = scaling["original_max_position_embeddings"]
    growth = config.max_position_embeddings / original
    return math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0


def _scale_linear(config: LlamaConfig, periods: Array, max_model_len: int) -> Any:
    """Every frequency divided by `factor`."""
    return np.float32(1.0) / periods / np.float32(config.rope_scaling["factor"])


def _scale_llama3(config: LlamaConfig, periods: Array, max_model_len: int) -> Any:
    """The low frequencies divided, the high ones kept, and between them a blend
    (`vllm/model_executor/layers/rotary_embedding/llama3_rope.py:33 in Llama3RotaryEmbedding`)."""
    inv_freq = np.float32(1.0) / periods
    scaling = config.rope_scaling
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = original * inv_freq / np.float32(2 * math.pi)  # in the original context length
    blend = np.clip((turns - low) / (high - low), 0, 1) if low != high else turns > low
    return inv_freq * (blend + (1 - blend) / scaling["factor"])


def _scale_yarn(config: LlamaConfig, periods: Array, max_model_len: int) -> Any:
    """As `llama3`, but the blend goes by the number of the pair, between those that turn `beta_slow` and
    `beta_fast` times in the original context length (Peng et al., 2023, section 3.2)
    (`vllm/model_executor/layers/rotary_embedding/yarn_scaling_rope.py:49 in YaRNScalingRotaryEmbedding`)."""
    scaling, dim = config.rope_scaling, config.rotary_dim
    original = float(scaling["original_max_position_embeddings"])

    def find_pair(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = find_pair(scaling.get("beta_fast", 32)), find_pair(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = np.clip(
        (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1
    )
    kept = (1 - ramp) * np.float32(scaling.get("extrapolation_factor", 1))
    divided = np.float32(1.0) / (np.float32(scaling["factor"]) * periods)
    return divided * (1 - kept) + np.float32(1.0) / periods * kept


def _scale_longrope(config: LlamaConfig, periods: Array, max_model_len: int) -> Any:
    """Every frequency divided by a factor of its own, one list for short texts and one for long ones (Ding et
    al., 2024). The longest text that is served decides which, not the text at hand: a cache of K turned by
    one is of no use to the other
    (vLLM's `Phi3LongRoPEScaledRotaryEmbedding`,
    `vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py:16`)."""
    factors = config.rope_scaling[f"{_long_or_short(config, max_model_len)}_factor"]
    return np.float32(1.0) / (np.asarray(factors, np.float32) * periods)


_SCALINGS = {
    "linear": _scale_linear,
    "llama3": _scale_llama3,
    "yarn": _scale_yarn,
    "longrope": _scale_longrope,
}


def _long_or_short(config: LlamaConfig, max_model_len: int | None) -> str:
    longest = max_model_len or config.default_max_model_len
    original: float = config.rope_scaling["original_max_position_embeddings"]
    return "long" if longest > original else "short"


def apply_rotary_emb(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each pair `(x[i], x[i + R / 2])` of each head by its position's angle.

    Args:
        x: float32 `[n, heads, D]`; of a head the first R numbers are turned, all of them as a rule.
        cos, sin: float32 `[n, 1, R / 2]`, of `position * inv_freq`.

    Source: `vllm/model_executor/layers/rotary_embedding/common.py:144 ApplyRotaryEmb.forward_static`.
    """
    half = cos.shape[-1]
    x1, x2 = x[..., :half], x[..., half : 2 * half]
    turned = (x1 * cos - x2 * sin, x2 * cos + x1 * sin)
    if 2 * half < x.shape[-1]:
        return np.concatenate((*turned, x[..., 2 * half :]), axis=-1)
    return np.concatenate(turned, axis=-1)

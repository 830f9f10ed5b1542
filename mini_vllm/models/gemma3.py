"""A Gemma 3 decoder in numpy: what it does otherwise than a Gemma 2.

Mirrors `vllm/model_executor/models/gemma3.py`. Most layers attend to a window; every sixth, or so, to all.
The two kinds turn their heads by different angles and have block tables of their own.

Left out: images, soft caps, attention in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.config.gemma3 import Gemma3Config
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.layers.rotary_embedding import rope_inv_freq
from mini_vllm.models.gemma2 import Gemma2Attention, Gemma2DecoderLayer, Gemma2ForCausalLM

if TYPE_CHECKING:
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Gemma3Attention(Gemma2Attention):
    """Each head of q and k is normed before it is turned
    (`vllm/model_executor/models/gemma3.py:100 Gemma3Attention`)."""

    def __init__(
        self,
        config: Any,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        super().__init__(config, weights, prefix, quant_config)
        self.q_norm = GemmaRMSNorm(weights[f"{prefix}.q_norm.weight"], config.rms_norm_eps)
        self.k_norm = GemmaRMSNorm(weights[f"{prefix}.k_norm.weight"], config.rms_norm_eps)

    def norm_heads(self, q_and_k: Array) -> Array:
        q, k = q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :]
        return super().norm_heads(np.concatenate((self.q_norm(q), self.k_norm(k)), axis=1))


class Gemma3DecoderLayer(Gemma2DecoderLayer):
    """Source: `vllm/model_executor/models/gemma3.py:228 Gemma3DecoderLayer`."""

    attention_cls = Gemma3Attention


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """The model (`vllm/model_executor/models/gemma3.py:446 Gemma3ForCausalLM`)."""

    decoder_layer = Gemma3DecoderLayer
    config: Gemma3Config

    def __init__(
        self,
        config: Gemma3Config,
        weights: Mapping[str, Array],
        attention: AttentionBackend | None = None,
        quant_config: QuantizationConfig | None = None,
    ) -> None:
        super().__init__(config, weights, attention, quant_config)
        local = replace(
            config, rope_theta=config.rope_local_base_freq, rope_type="default", rope_scaling={}
        )
        self.local_inv_freq = rope_inv_freq(local)
        self.is_sliding = [kind == "sliding_attention" for kind in config.layer_types]

    def get_layer_cos_sins(
        self, positions: NDArray[np.integer[Any]]
    ) -> Sequence[tuple[Array, Array]]:
        """One of two for each layer: a layer with a window has plain RoPE of another base."""
        angles = positions.astype(np.float32)[:, None, None] * self.local_inv_freq
        of_kinds = self.get_cos_sin(positions), (np.cos(angles), np.sin(angles))
        return [of_kinds[is_sliding] for is_sliding in self.is_sliding]

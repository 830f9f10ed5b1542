"""A Qwen 3 decoder in numpy: a Llama that norms each head of q and k before it turns it.

Mirrors `vllm/model_executor/models/qwen3.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.attention.backend import Array
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM

if TYPE_CHECKING:
    from mini_vllm.config.model import LlamaConfig
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Qwen3Attention(LlamaAttention):
    """Source: `vllm/model_executor/models/qwen3.py:59 Qwen3Attention`."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        super().__init__(config, weights, prefix, quant_config)
        self.q_norm = RMSNorm(weights[f"{prefix}.q_norm.weight"], config.rms_norm_eps)
        self.k_norm = RMSNorm(weights[f"{prefix}.k_norm.weight"], config.rms_norm_eps)

    def norm_heads(self, q_and_k: Array) -> Array:
        q, k = q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :]
        return np.concatenate((self.q_norm(q), self.k_norm(k)), axis=1)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/qwen3.py:165 Qwen3DecoderLayer`."""

    attention_cls = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/qwen3.py:261 Qwen3ForCausalLM`)."""

    decoder_layer = Qwen3DecoderLayer

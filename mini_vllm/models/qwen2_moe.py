"""A Qwen 2 with experts, in numpy: some layers have a mixture, and beside it an expert that all tokens share.

Mirrors `vllm/model_executor/models/qwen2_moe.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention.backend import Array
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP

if TYPE_CHECKING:
    from mini_vllm.config.qwen import Qwen2MoeConfig
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Qwen2MoeSharedExpert:
    """An MLP, times how much the token wants of it: `Qwen2MoeMLP` with an `expert_gate`
    (`vllm/model_executor/models/qwen2_moe.py:77 Qwen2MoeMLP`)."""

    def __init__(
        self,
        config: Qwen2MoeConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        inner = config.shared_expert_intermediate_size
        self.mlp = LlamaMLP(config, weights, f"{prefix}.shared_expert", quant_config, inner)
        self.expert_gate = weights[f"{prefix}.shared_expert_gate.weight"].T  # [hidden_size, 1]

    def forward(self, x: Array) -> Array:
        gated: Array = self.mlp.forward(x) / (1 + np.exp(-(x @ self.expert_gate)))
        return gated


class Qwen2MoeDecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/qwen2_moe.py:285 Qwen2MoeDecoderLayer`."""

    def make_mlp(
        self,
        config: Any,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> LlamaMLP | FusedMoE:
        if not config.has_experts(int(prefix.rpartition(".")[2])):
            return super().make_mlp(config, weights, prefix, quant_config)
        shared = Qwen2MoeSharedExpert(config, weights, f"{prefix}.mlp", quant_config)
        return FusedMoE(config, weights, prefix, shared)


class Qwen2MoeForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/qwen2_moe.py:537 Qwen2MoeForCausalLM`)."""

    decoder_layer = Qwen2MoeDecoderLayer

"""A Qwen 3 with experts, in numpy: its attention, and in some layers a mixture.

Mirrors `vllm/model_executor/models/qwen3_moe.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.attention.backend import Array
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.models.llama import LlamaForCausalLM, LlamaMLP
from mini_vllm.models.qwen3 import Qwen3DecoderLayer

if TYPE_CHECKING:
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Qwen3MoeDecoderLayer(Qwen3DecoderLayer):
    """Source: `vllm/model_executor/models/qwen3_moe.py:364 Qwen3MoeDecoderLayer`."""

    def make_mlp(
        self,
        config: Any,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> LlamaMLP | FusedMoE:
        if not config.has_experts(int(prefix.rpartition(".")[2])):
            return super().make_mlp(config, weights, prefix, quant_config)
        return FusedMoE(config, weights, prefix)


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/qwen3_moe.py:675 Qwen3MoeForCausalLM`)."""

    decoder_layer = Qwen3MoeDecoderLayer

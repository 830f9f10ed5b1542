"""A Mixtral decoder in numpy: a Mistral with experts where that has its MLP.

Mirrors `vllm/model_executor/models/mixtral.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.attention.backend import Array
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM

if TYPE_CHECKING:
    from mini_vllm.layers.quantization.base import QuantizationConfig


class MixtralDecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/mixtral.py:238 MixtralDecoderLayer`."""

    def make_mlp(
        self,
        config: Any,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> FusedMoE:
        return FusedMoE(config, weights, prefix)


class MixtralForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/mixtral.py:485 MixtralForCausalLM`)."""

    decoder_layer = MixtralDecoderLayer

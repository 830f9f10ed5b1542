"""A Gemma 3 decoder in numpy: what it does otherwise than a Llama.

Mirrors `vllm/model_executor/models/gemma3.py`. Most layers attend to a window; every sixth, or so, to all.
The two kinds turn their heads by different angles and have block tables of their own.

Left out: images, soft caps, attention in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.config.gemma3 import Gemma3Config
from mini_vllm.layers.activation import gelu_tanh_and_mul
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.layers.rotary_embedding import rope_inv_freq
from mini_vllm.models.llama import (
    MLP_ROWS,
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
)

if TYPE_CHECKING:
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Gemma3MLP(LlamaMLP):
    """Another activation (`vllm/model_executor/models/gemma3.py:67 Gemma3MLP`)."""

    def forward(self, x: Array) -> Array:
        if len(x) > MLP_ROWS:
            return super().forward(x)
        return self.down_proj(gelu_tanh_and_mul(self.gate_up_proj(x)))


class Gemma3Attention(LlamaAttention):
    """Each head of q and k is normed before it is turned
    (`vllm/model_executor/models/gemma3.py:100 Gemma3Attention`)."""

    def __init__(
        self,
        config: Gemma3Config,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        super().__init__(config, weights, prefix, quant_config)
        self.q_norm = GemmaRMSNorm(weights[f"{prefix}.q_norm.weight"], config.rms_norm_eps)
        self.k_norm = GemmaRMSNorm(weights[f"{prefix}.k_norm.weight"], config.rms_norm_eps)
        # A backend divides the scores by the root of head_dim; here something else may be asked for.
        self.q_scale = np.float32((config.head_dim / config.query_pre_attn_scalar) ** 0.5)

    def norm_heads(self, q_and_k: Array) -> Array:
        q, k = q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :]
        return np.concatenate((self.q_norm(q) * self.q_scale, self.k_norm(k)), axis=1)


class Gemma3DecoderLayer(LlamaDecoderLayer):
    """What comes out of attention and MLP is normed too, before it is added
    (`vllm/model_executor/models/gemma3.py:228 Gemma3DecoderLayer`)."""

    def __init__(
        self,
        config: Gemma3Config,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        def norm(name: str) -> GemmaRMSNorm:
            return GemmaRMSNorm(weights[f"{prefix}.{name}.weight"], config.rms_norm_eps)

        self.input_layernorm = norm("input_layernorm")
        self.self_attn = Gemma3Attention(config, weights, f"{prefix}.self_attn", quant_config)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.mlp = Gemma3MLP(config, weights, f"{prefix}.mlp", quant_config)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")

    def forward(
        self,
        cos_sin: tuple[Array, Array],
        hidden_states: Array,
        attn: AttentionBackend,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        residual = hidden_states
        hidden_states = self.self_attn.forward(
            cos_sin, self.input_layernorm(hidden_states), attn, kv_cache, attn_metadata
        )
        residual = residual + self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp.forward(self.pre_feedforward_layernorm(residual))
        return residual + self.post_feedforward_layernorm(hidden_states)


class Gemma3ForCausalLM(LlamaForCausalLM):
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
        self.norm = GemmaRMSNorm(weights["model.norm.weight"], config.rms_norm_eps)
        self.normalizer = np.float32(config.hidden_size**0.5)
        local = replace(config, rope_theta=config.rope_local_base_freq, rope_type="default")
        self.local_inv_freq = rope_inv_freq(local)
        self.is_sliding = [kind == "sliding_attention" for kind in config.layer_types]

    @np.errstate(over="ignore", invalid="ignore")
    def forward(
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Array] | None = None,
    ) -> Array:
        """As `LlamaForCausalLM.forward`; `attn_metadata.layers` has each layer's own, where they differ.

        Source: `vllm/model_executor/models/gemma3.py:336 Gemma3Model.forward`.
        """
        hidden_states: Array = self.embed_tokens[input_ids] * self.normalizer
        at = positions.astype(np.float32)[:, None, None]
        cos_sins = [(np.cos(a), np.sin(a)) for a in (at * self.inv_freq, at * self.local_inv_freq)]
        per_layer = attn_metadata.layers or [attn_metadata] * len(self.layers)
        for i, (layer, is_sliding, kv_cache, metadata) in enumerate(
            zip(self.layers, self.is_sliding, kv_caches, per_layer, strict=True)
        ):
            if aux_hidden_states is not None and i in self.aux_hidden_state_layers:
                aux_hidden_states.append(hidden_states)
            hidden_states = layer.forward(
                cos_sins[is_sliding], hidden_states, self.attention, kv_cache, metadata
            )
        if aux_hidden_states is not None and len(self.layers) in self.aux_hidden_state_layers:
            aux_hidden_states.append(hidden_states)
        return self.norm(hidden_states)

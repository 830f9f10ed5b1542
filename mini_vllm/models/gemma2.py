"""A Gemma 2 decoder in numpy: what it does otherwise than a Gemma.

Mirrors `vllm/model_executor/models/gemma2.py`. Every second layer attends to a window; scores and logits are
capped softly; and what comes out of attention and MLP is normed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.attention.paged import cap_softly
from mini_vllm.config.gemma2 import Gemma2Config
from mini_vllm.models.gemma import GemmaDecoderLayer, GemmaForCausalLM
from mini_vllm.models.llama import LlamaAttention

if TYPE_CHECKING:
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Gemma2Attention(LlamaAttention):
    """Scores are divided by the root of what the file says, not of `head_dim`
    (`vllm/model_executor/models/gemma2.py:99 Gemma2Attention`)."""

    def __init__(
        self,
        config: Any,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        super().__init__(config, weights, prefix, quant_config)
        # A backend divides the scores by the root of head_dim.
        self.q_scale = np.float32((config.head_dim / config.query_pre_attn_scalar) ** 0.5)

    def norm_heads(self, q_and_k: Array) -> Array:
        q, k = q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :]
        return np.concatenate((q * self.q_scale, k), axis=1)


class Gemma2DecoderLayer(GemmaDecoderLayer):
    """What comes out of attention and MLP is normed too, before it is added
    (`vllm/model_executor/models/gemma2.py:187 Gemma2DecoderLayer`)."""

    attention_cls = Gemma2Attention

    def __init__(
        self,
        config: Any,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        super().__init__(config, weights, prefix, quant_config)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (
            self.norm_cls(
                weights[f"{prefix}.{name}_feedforward_layernorm.weight"], config.rms_norm_eps
            )
            for name in ("pre", "post")
        )

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


class Gemma2ForCausalLM(GemmaForCausalLM):
    """The model (`vllm/model_executor/models/gemma2.py:372 Gemma2ForCausalLM`).

    Raises ValueError for an attention backend that cannot cap its scores.
    """

    decoder_layer = Gemma2DecoderLayer
    config: Gemma2Config

    def __init__(
        self,
        config: Gemma2Config,
        weights: Mapping[str, Array],
        attention: AttentionBackend | None = None,
        quant_config: QuantizationConfig | None = None,
    ) -> None:
        super().__init__(config, weights, attention, quant_config)
        cap = config.attn_logit_softcapping
        if cap is not None:
            backend: Any = self.attention
            if not getattr(backend, "supports_logits_soft_cap", False):
                raise ValueError(
                    f"{type(backend).__name__} does not support attn_logit_softcapping ({cap}), which this "
                    f"{config.architecture} asks for"
                )
            backend.logits_soft_cap = cap

    def compute_logits(self, hidden_states: Array) -> Array:
        logits = super().compute_logits(hidden_states)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap_softly(logits, cap)

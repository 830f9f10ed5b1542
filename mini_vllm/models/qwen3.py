"""A Qwen 3 decoder in numpy: a Llama that norms each head of q and k before it turns it.

Mirrors `vllm/model_executor/models/qwen3.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.layers.rotary_embedding import apply_rotary_emb
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

    def forward(
        self,
        cos_sin: tuple[Array, Array],
        hidden_states: Array,
        attn: AttentionBackend,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        qkv = self.qkv_proj(hidden_states).reshape(len(hidden_states), -1, self.head_dim)
        first_v = self.num_heads + self.num_kv_heads
        q, k, v = qkv[:, : self.num_heads], qkv[:, self.num_heads : first_v], qkv[:, first_v:]
        q = apply_rotary_emb(self.q_norm(q), *cos_sin)
        k = apply_rotary_emb(self.k_norm(k), *cos_sin)
        return self.o_proj(attn.forward(q, k, v, kv_cache, attn_metadata))


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/qwen3.py:165 Qwen3DecoderLayer`."""

    attention_cls = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/qwen3.py:261 Qwen3ForCausalLM`)."""

    decoder_layer = Qwen3DecoderLayer

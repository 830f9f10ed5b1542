"""A Llama decoder in numpy over a paged KV cache.

Mirrors `vllm/model_executor/models/llama.py`, class by class: one flat batch of tokens a step,
whichever requests they belong to; the attention metadata says which rows are whose. As there, q, k and v are
one product, and so are gate and up. How a linear layer keeps its weights is its method's affair
(`layers/quantization/`). Left out: LoRA, any arithmetic but float32. Several ranks share
it by `model_loader/shards.py`.

Shapes below: n tokens in the batch, D numbers a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata, TiledAttention
from mini_vllm.config.checks import CheckpointError
from mini_vllm.layers.activation import silu_and_mul
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.layers.quantization.base import NoQuantizationConfig
from mini_vllm.layers.rotary_embedding import apply_rotary_emb, rope_inv_freq, rope_mscale

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array, AttentionBackend
    from mini_vllm.config.model import LlamaConfig
    from mini_vllm.layers.fused_moe.layer import FusedMoE
    from mini_vllm.layers.quantization.base import QuantizationConfig

MLP_ROWS = 512
"""Rows that go through an MLP together. A prefill of 4,096 rows makes arrays of 6 MB between its
products, which no cache holds and which come from the system afresh each time: a layer's MLP of the
shipped model took 26 ms of processor time in one piece, 17.5 ms in pieces of 512 (AVX2 kernels)."""


class LlamaMLP:
    """The feed-forward half of a layer
    (`vllm/model_executor/models/llama.py:81 LlamaMLP`).

    `intermediate_size` is `config`'s, unless another is given.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
        intermediate_size: int | None = None,
    ) -> None:
        hidden, inner = config.hidden_size, intermediate_size or config.intermediate_size
        gate_up = {f"{prefix}.{name}": n for name, n in config.gate_up_sizes(inner).items()}
        self.gate_up_proj = Linear(weights, hidden, gate_up, config.mlp_bias, quant_config)
        down = {f"{prefix}.down_proj": hidden}
        self.down_proj = Linear(weights, inner, down, config.mlp_bias, quant_config)

    def forward(self, x: Array) -> Array:
        """float32 `[n, hidden_size]` to the same. Rows do not meet here, so pieces of x will do.
        Source: `vllm/model_executor/models/llama.py:117 LlamaMLP.forward`."""
        if len(x) > MLP_ROWS:
            pieces = range(0, len(x), MLP_ROWS)
            return np.concatenate([self.forward(x[i : i + MLP_ROWS]) for i in pieces])
        return self.down_proj(silu_and_mul(self.gate_up_proj(x)))


class LlamaAttention:
    """The half of a layer in which tokens meet
    (`vllm/model_executor/models/llama.py:124 LlamaAttention`)."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        q_size = self.num_heads * self.head_dim
        qkv = {f"{prefix}.{name}": size for name, size in config.qkv_sizes.items()}
        self.qkv_proj = Linear(weights, config.qkv_input_size, qkv, bias, quant_config)
        self.o_proj = Linear(
            weights, q_size, {f"{prefix}.o_proj": hidden}, config.o_proj_bias, quant_config
        )
        # What a cache of codes divides K and V by (`quantization/kv_cache.py`). Where a file has but one
        # scale it serves both, and where it has none, as upstream, it is 1.
        k_scale = weights.get(f"{prefix}.k_scale", weights.get(f"{prefix}.v_scale", np.ones(1)))
        v_scale = weights.get(f"{prefix}.v_scale", k_scale)
        self.k_scale, self.v_scale = float(k_scale.item()), float(v_scale.item())
        if min(self.k_scale, self.v_scale) <= 0:
            raise CheckpointError(
                f"{prefix}.k_scale and v_scale must be above 0, got {self.k_scale} and {self.v_scale}"
            )

    def forward(
        self,
        cos_sin: tuple[Array, Array],
        hidden_states: Array,
        attn: AttentionBackend,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        qkv = self.qkv_proj(hidden_states).reshape(len(hidden_states), -1, self.head_dim)
        q_and_k, v = qkv[:, : -self.num_kv_heads], qkv[:, -self.num_kv_heads :]
        q_and_k = apply_rotary_emb(self.norm_heads(q_and_k), *cos_sin)
        q, k = q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :]
        attn_output = attn.forward(q, k, v, kv_cache, attn_metadata)
        return self.o_proj(attn_output)

    def norm_heads(self, q_and_k: Array) -> Array:
        """What becomes of the heads of q and k, `[n, num_heads + num_kv_heads, D]`, before they are turned:
        nothing here; Qwen 3 and Gemma 3 norm each of them."""
        return q_and_k


class LlamaDecoderLayer:
    """Attention, then the MLP, each on a normed copy and added to what came in
    (`vllm/model_executor/models/llama.py:253 LlamaDecoderLayer`).

    Models that differ in a half say which class it is, or make it.
    """

    attention_cls: type[LlamaAttention] = LlamaAttention
    mlp_cls: type[LlamaMLP] = LlamaMLP
    norm_cls: type[RMSNorm] = RMSNorm

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        self.input_layernorm = self.make_input_layernorm(config, weights, prefix)
        self.self_attn = self.attention_cls(config, weights, f"{prefix}.self_attn", quant_config)
        post_attention = weights[f"{prefix}.post_attention_layernorm.weight"]
        self.post_attention_layernorm = self.norm_cls(post_attention, config.rms_norm_eps)
        self.mlp = self.make_mlp(config, weights, prefix, quant_config)

    def make_input_layernorm(
        self, config: LlamaConfig, weights: Mapping[str, Array], prefix: str
    ) -> Callable[[Array], Array]:
        """What attention's input goes through first; `prefix` is the layer's."""
        return self.norm_cls(weights[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)

    def make_mlp(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> LlamaMLP | FusedMoE:
        """What stands in the layer's second half; `prefix` is the layer's."""
        return self.mlp_cls(config, weights, f"{prefix}.mlp", quant_config)

    def forward(
        self,
        cos_sin: tuple[Array, Array],
        hidden_states: Array,
        attn: AttentionBackend,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """float32 `[n, hidden_size]` to the same
        (`vllm/model_executor/models/llama.py:316 LlamaDecoderLayer.forward`)."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = residual + self.self_attn.forward(
            cos_sin, hidden_states, attn, kv_cache, attn_metadata
        )
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        return residual + self.mlp.forward(hidden_states)


class LlamaForCausalLM:
    """The model. Holds weights, no state of any request: that lives in the KV cache.

    Args:
        config: checked configuration.
        weights: tensors by Hugging Face name; see `checkpoint.load_weights`.
        attention: backend; a `TiledAttention` when None.
        quant_config: how the linears are stored; None: as `config` says.
    """

    decoder_layer: type[LlamaDecoderLayer] = LlamaDecoderLayer

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        attention: AttentionBackend | None = None,
        quant_config: QuantizationConfig | None = None,
    ) -> None:
        self.config = config
        if quant_config is None:
            quant_config = get_quantization_config(config.quantization_config)
        self.quant_config = quant_config
        self.attention: AttentionBackend = TiledAttention() if attention is None else attention
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        sizes = {head: config.vocab_size}
        # First, while nothing else is in memory: a method may have to turn its weights.
        self.lm_head = Linear(weights, config.hidden_size, sizes, False, NoQuantizationConfig())
        self.embed_tokens = self.lm_head.weight
        """float32 `[vocab_size, hidden_size]`; a tied head's is in the order that suits the head."""
        if not config.tie_word_embeddings:
            self.embed_tokens = np.asarray(weights["model.embed_tokens.weight"])
        self.layers = [
            self.decoder_layer(config, weights, f"model.layers.{i}", quant_config)
            for i in range(config.num_hidden_layers)
        ]
        norm_cls = self.decoder_layer.norm_cls
        self.norm = norm_cls(weights["model.norm.weight"], config.rms_norm_eps)
        self.inv_freq, self.mscale = rope_inv_freq(config), rope_mscale(config)
        self.max_model_len: int | None = None
        self.aux_hidden_state_layers: tuple[int, ...] = ()
        """Of these layers, an EAGLE-3 head wants the input; `num_hidden_layers`: of the last norm."""

    # Weights near float32's limit overflow to inf and NaN here as they do on any device, without a word.
    @np.errstate(over="ignore", invalid="ignore")
    def forward(
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Array] | None = None,
    ) -> Array:
        """Hidden states of one flat batch; writes its K and V into `kv_caches`.

        Args:
            input_ids: `[n]`, each below `vocab_size`.
            positions: `[n]`, place of each token in its own request.
            kv_caches: one cache per layer.
            attn_metadata: which rows and which blocks belong to which request.
            aux_hidden_states: takes the hidden states that `aux_hidden_state_layers` names, from
                the lowest layer to the highest. Upstream returns them beside the others.

        Returns:
            float32 `[n, hidden_size]` after the last norm.

        Source: `vllm/model_executor/models/llama.py:395 LlamaModel.forward`.
        """
        hidden_states: Array = self.embed_tokens[input_ids]
        cos_sin = self.get_cos_sin(positions)
        for i, (layer, kv_cache) in enumerate(zip(self.layers, kv_caches, strict=True)):
            if aux_hidden_states is not None and i in self.aux_hidden_state_layers:
                aux_hidden_states.append(hidden_states)
            hidden_states = layer.forward(
                cos_sin, hidden_states, self.attention, kv_cache, attn_metadata
            )
        if aux_hidden_states is not None and len(self.layers) in self.aux_hidden_state_layers:
            aux_hidden_states.append(hidden_states)
        return self.norm(hidden_states)

    def get_cos_sin(self, positions: NDArray[np.integer[Any]]) -> tuple[Array, Array]:
        """The turns of this step's positions. Upstream looks them up in a table of every position."""
        angles = positions.astype(np.float32)[:, None, None] * self.inv_freq
        if self.mscale == 1:
            return np.cos(angles), np.sin(angles)
        mscale = np.float32(self.mscale)
        return np.cos(angles) * mscale, np.sin(angles) * mscale

    def set_max_model_len(self, max_model_len: int) -> None:
        """Say how long a text may be: `longrope` has other factors for long ones, the other kinds do not ask.

        Upstream a model knows from the start (`vllm/config/model.py:117 ModelConfig`). Here several engines
        may share one, so a second length that asks for other factors is refused with ValueError.
        """
        inv_freq = rope_inv_freq(self.config, max_model_len)
        if self.max_model_len is not None and not np.array_equal(inv_freq, self.inv_freq):
            raise ValueError(
                f"max_model_len {max_model_len} needs other RoPE factors than {self.max_model_len}, for "
                "which this loaded model is in use: load it once more"
            )
        self.max_model_len, self.inv_freq = max_model_len, inv_freq
        self.mscale = rope_mscale(self.config, max_model_len)

    def compute_logits(self, hidden_states: Array) -> Array:
        """float32 `[n, vocab_size]` from hidden states `[n, hidden_size]`
        (`vllm/model_executor/models/llama.py:577 LlamaForCausalLM.compute_logits`)."""
        return self.lm_head(hidden_states)

    def lend_embed_tokens(self) -> Array:
        """The embedding, for a drafter whose checkpoint has none: `[vocab_size, hidden_size]`."""
        return self.embed_tokens

    def lend_lm_head(self) -> Linear:
        """The LM head, likewise."""
        return self.lm_head

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        """An early layer, the middle one and a late one. In models of few layers two may be the same, which
        then gives one state for both (`vllm/model_executor/models/interfaces.py:1370`)."""
        n = self.config.num_hidden_layers
        return 2, n // 2, n - 3

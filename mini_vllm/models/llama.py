"""A Llama decoder in numpy over a paged KV cache.

Mirrors `vllm/model_executor/models/llama.py`, class by class: one flat batch of tokens a step,
whoever they belong to; the attention metadata says which rows are whose. As there, q, k and v are
one product, and so are gate and up. How a linear layer keeps its weights is its method's affair
(`mini_vllm/quantization/`). Left out: tensor and pipeline parallelism, LoRA, any arithmetic but float32.

Shapes below: n tokens in the batch, D numbers a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata, TiledAttention
from mini_vllm.llama_config import CheckpointError
from mini_vllm.quantization.base import choose_linear_method, load_parameters
from mini_vllm.quantization.config import NoQuantizationConfig, get_quantization_config

if TYPE_CHECKING:
    from mini_vllm.llama_config import LlamaConfig
    from mini_vllm.quantization.base import QuantizationConfig

Array = NDArray[np.float32]


class AttentionBackend(Protocol):
    """What the model asks of its attention; see `mini_vllm.attention`."""

    def get_kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]: ...

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array: ...


def rope_inv_freq(config: LlamaConfig) -> Array:
    """Radians per position of each of the `head_dim / 2` rotated pairs, float32.

    Plain RoPE: Su et al., 2021. `linear` divides every frequency by `factor`. `llama3`
    divides the low ones, keeps the high ones and blends between
    (`vllm/model_executor/layers/rotary_embedding/llama3_rope.py:33 Llama3RotaryEmbedding._compute_inv_freq`).
    Single precision all the way, as there: in float64 the angles at position 1000 differ by 1e-5.
    """
    dim = config.head_dim
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    inv_freq: Any = np.float32(1.0) / np.power(np.float32(config.rope_theta), exponent)
    scaling = config.rope_scaling
    if config.rope_type == "linear":
        inv_freq = inv_freq / np.float32(scaling["factor"])
    if config.rope_type == "llama3":
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * inv_freq / np.float32(2 * math.pi)  # in the original context length
        blend = np.clip((turns - low) / (high - low), 0, 1) if low != high else turns > low
        inv_freq = inv_freq * (blend + (1 - blend) / scaling["factor"])
    return np.asarray(inv_freq, np.float32)


def apply_rotary_emb(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each pair `(x[i], x[i + D / 2])` of each head by its position's angle.

    Args:
        x: float32 `[n, heads, D]`.
        cos, sin: float32 `[n, 1, D / 2]`, of `position * inv_freq`.

    Source: `vllm/model_executor/layers/rotary_embedding/common.py:144 ApplyRotaryEmb.forward_static`.
    """
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate((x1 * cos - x2 * sin, x2 * cos + x1 * sin), axis=-1)


def silu_and_mul(gate_up: Array) -> Array:
    """`silu(gate) * up`, `[n, size]`, from the two side by side, `[n, 2 * size]`
    (`vllm/model_executor/layers/activation.py:138 SiluAndMul.forward_native`).

    `silu(g) = g / (1 + exp(-g))`: far below zero exp overflows to infinity, and the quotient is the
    0 that it should be.
    """
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :size], gate_up[:, size:]
    with np.errstate(over="ignore"):
        activated: Array = gate / (1 + np.exp(-gate)) * up
    return activated


class RMSNorm:
    """Each row divided by its root mean square, then scaled (Zhang and Sennrich, 2019)
    (`vllm/model_executor/layers/layernorm.py:38 RMSNorm`)."""

    def __init__(self, weight: Array, eps: float) -> None:
        self.weight = np.asarray(weight)
        self.eps = np.float32(eps)

    def __call__(self, x: Array) -> Array:
        """float32 `[n, hidden_size]` to the same."""
        variance = (x * x).sum(axis=-1, keepdims=True) / x.shape[-1]
        normed: Array = x / np.sqrt(variance + self.eps) * self.weight
        return normed


class Linear:
    """`x @ weight + bias`, for one projection of the checkpoint or several side by side.

    Which tensors stand for the weight, and what the product is, its `quant_method` says
    (`vllm/model_executor/layers/linear.py:231 LinearBase`).

    Args:
        weights: tensors by Hugging Face name; there a matrix is `[out, in]`.
        input_size: numbers of a row that comes in.
        output_sizes: numbers of a row of each projection, by name; they stand side by side in the result.
        bias: whether they have one.
        quant_config: asked for the method.
    """

    weight: Array

    def __init__(
        self,
        weights: Mapping[str, Array],
        input_size: int,
        output_sizes: Mapping[str, int],
        bias: bool,
        quant_config: QuantizationConfig,
    ) -> None:
        self.names = list(output_sizes)
        self.input_size = input_size
        self.output_sizes = list(output_sizes.values())
        self.output_size = sum(self.output_sizes)
        self.quant_method = choose_linear_method(quant_config, self.names)
        load_parameters(self, weights)
        self.quant_method.process_weights_after_loading(self)
        biases = [weights[f"{name}.bias"] for name in self.names] if bias else []
        self.bias = np.concatenate(biases) if bias else None

    def __call__(self, x: Array) -> Array:
        """float32 `[n, in]` to `[n, out]`."""
        y = self.quant_method.apply(self, x)
        return y if self.bias is None else y + self.bias


class LlamaMLP:
    """The feed-forward half of a layer
    (`vllm/model_executor/models/llama.py:81 LlamaMLP`)."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        gate_up = {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
        self.gate_up_proj = Linear(weights, hidden, gate_up, config.mlp_bias, quant_config)
        down = {f"{prefix}.down_proj": hidden}
        self.down_proj = Linear(weights, inner, down, config.mlp_bias, quant_config)

    def forward(self, x: Array) -> Array:
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
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv = {f"{prefix}.q_proj": q_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
        self.qkv_proj = Linear(weights, hidden, qkv, bias, quant_config)
        self.o_proj = Linear(weights, q_size, {f"{prefix}.o_proj": hidden}, bias, quant_config)
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
        q_and_k = apply_rotary_emb(q_and_k, *cos_sin)
        q, k = q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :]
        attn_output = attn.forward(q, k, v, kv_cache, attn_metadata)
        return self.o_proj(attn_output)


class LlamaDecoderLayer:
    """Attention, then the MLP, each on a normed copy and added to what came in
    (`vllm/model_executor/models/llama.py:253 LlamaDecoderLayer`)."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        eps = config.rms_norm_eps
        self.input_layernorm = RMSNorm(weights[f"{prefix}.input_layernorm.weight"], eps)
        self.self_attn = LlamaAttention(config, weights, f"{prefix}.self_attn", quant_config)
        self.post_attention_layernorm = RMSNorm(
            weights[f"{prefix}.post_attention_layernorm.weight"], eps
        )
        self.mlp = LlamaMLP(config, weights, f"{prefix}.mlp", quant_config)

    def forward(
        self,
        cos_sin: tuple[Array, Array],
        hidden_states: Array,
        attn: AttentionBackend,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
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
        self.embed_tokens = np.asarray(weights["model.embed_tokens.weight"])
        self.layers = [
            LlamaDecoderLayer(config, weights, f"model.layers.{i}", quant_config)
            for i in range(config.num_hidden_layers)
        ]
        self.norm = RMSNorm(weights["model.norm.weight"], config.rms_norm_eps)
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        sizes = {head: config.vocab_size}
        self.lm_head = Linear(weights, config.hidden_size, sizes, False, NoQuantizationConfig())
        self.inv_freq = rope_inv_freq(config)

    # Weights near float32's limit overflow to inf and NaN here as they do on any device, without a word.
    @np.errstate(over="ignore", invalid="ignore")
    def forward(
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """Hidden states of one flat batch; writes its K and V into `kv_caches`.

        Args:
            input_ids: `[n]`, each below `vocab_size`.
            positions: `[n]`, place of each token in its own request.
            kv_caches: one cache per layer.
            attn_metadata: which rows and which blocks belong to whom.

        Returns:
            float32 `[n, hidden_size]` after the last norm.

        Source: `vllm/model_executor/models/llama.py:395 LlamaModel.forward`.
        """
        try:
            hidden_states: Array = self.embed_tokens[input_ids]
        except IndexError:
            raise IndexError(
                f"input_ids holds {int(np.max(input_ids))}, but the vocabulary ends at "
                f"{len(self.embed_tokens) - 1}: an argmax over several rows of logits at once "
                "gives such ids"
            ) from None
        # The angles of this step's positions. Upstream looks them up in a table of every position.
        angles = positions.astype(np.float32)[:, None, None] * self.inv_freq
        cos_sin = np.cos(angles), np.sin(angles)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden_states = layer.forward(
                cos_sin, hidden_states, self.attention, kv_cache, attn_metadata
            )
        return self.norm(hidden_states)

    def compute_logits(self, hidden_states: Array) -> Array:
        """float32 `[n, vocab_size]` from hidden states `[n, hidden_size]`."""
        return self.lm_head(hidden_states)

"""A Llama decoder in numpy over a paged KV cache.

Mirrors ``vllm/model_executor/models/llama.py``: one flat batch of tokens a step, whoever they
belong to; the attention metadata says which rows are whose. As there, q/k/v and gate/up are one
matrix each. Left out: tensor and pipeline parallelism, LoRA, quantised linears, any arithmetic but
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata, PagedAttention

if TYPE_CHECKING:
    from mini_vllm.llama_config import LlamaConfig

Array = NDArray[np.float32]


class AttentionBackend(Protocol):
    """What the model asks of its attention; `mini_vllm.attention.PagedAttention` is the default."""

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
    """Radians per position of each of the ``head_dim / 2`` rotated pairs, float32.

    Plain RoPE: Su et al., 2021. ``linear`` divides every frequency by ``factor``. ``llama3``
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


@dataclass
class LlamaDecoderLayer:
    """Weights of one layer, transposed to ``[in, out]`` and fused. A bias is None where there is
    none.

    ``qkv`` takes its rows' RMSNorm weight with it, and so does ``gate_up``: ``(x * w) @ M = x @
    (diag(w) M)``. In ``qkv`` the outputs of each q and k head are interleaved for
    `LlamaForCausalLM.forward`'s rotation. ``gate_up`` is ``[2, hidden, intermediate]``, so that one
    batched product leaves both halves contiguous, and yields ``g / 2`` for the gate, as ``silu(g) =
    g * sigmoid(g) = g / 2 * (1 + tanh(g / 2))``.
    """

    qkv: Array
    qkv_bias: Array | None
    o: Array
    o_bias: Array | None
    gate_up: Array
    gate_up_bias: Array | None
    down: Array
    down_bias: Array | None


class LlamaForCausalLM:
    """The model. Holds weights, no state of any request: that lives in the KV cache.

    Args:
        config: checked configuration.
        weights: tensors by Hugging Face name, float32; see ``checkpoint.load_weights``.
        attention: backend; a `PagedAttention` when None.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        attention: AttentionBackend | None = None,
    ) -> None:
        self.config = config
        self.attention: AttentionBackend = PagedAttention() if attention is None else attention
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.embed_tokens = np.asarray(weights["model.embed_tokens.weight"])
        self.layers = [self._layer(weights, i) for i in range(config.num_hidden_layers)]
        self.norm = np.asarray(weights["model.norm.weight"])
        head = self.embed_tokens if config.tie_word_embeddings else weights["lm_head.weight"]
        self.lm_head = np.ascontiguousarray(np.asarray(head).T)
        self.inv_freq = rope_inv_freq(config)
        self._rope = self._rope_table(min(config.max_position_embeddings, 4096))

    def _layer(self, weights: Mapping[str, Array], index: int) -> LlamaDecoderLayer:
        prefix = f"model.layers.{index}."
        config = self.config

        def get(name: str, bias: bool, heads: int = 0) -> tuple[Array, Array | None]:
            rows = slice(None) if not heads else interleaved(heads, self.head_dim)
            matrix = weights[f"{prefix}{name}.weight"][rows].T
            return matrix, weights[f"{prefix}{name}.bias"][rows] if bias else None

        def fuse(
            parts: list[tuple[Array, Array | None]], join: Callable[..., Array]
        ) -> tuple[Array, Array | None]:
            matrices, biases = zip(*parts, strict=True)
            return join(matrices), None if biases[0] is None else join(biases)

        qkv, qkv_bias = fuse(
            [
                get("self_attn.q_proj", config.attention_bias, self.num_heads),
                get("self_attn.k_proj", config.attention_bias, self.num_kv_heads),
                get("self_attn.v_proj", config.attention_bias),
            ],
            lambda parts: np.concatenate(parts, axis=-1),
        )
        gate_up, gate_up_bias = fuse(
            [get("mlp.gate_proj", config.mlp_bias), get("mlp.up_proj", config.mlp_bias)],
            lambda parts: np.stack([parts[0] * np.float32(0.5), parts[1]]),
        )
        o, o_bias = get("self_attn.o_proj", config.attention_bias)
        down, down_bias = get("mlp.down_proj", config.mlp_bias)
        input_norm = weights[f"{prefix}input_layernorm.weight"][:, None]
        post_norm = weights[f"{prefix}post_attention_layernorm.weight"][:, None]
        return LlamaDecoderLayer(
            qkv=np.ascontiguousarray(qkv * input_norm),
            qkv_bias=qkv_bias,
            o=np.ascontiguousarray(o),
            o_bias=o_bias,
            gate_up=np.ascontiguousarray(gate_up * post_norm),
            gate_up_bias=None if gate_up_bias is None else gate_up_bias[:, None],
            down=np.ascontiguousarray(down),
            down_bias=down_bias,
        )

    def _rope_table(self, positions: int) -> NDArray[np.complex64]:
        """``exp(i * position * inv_freq)``, complex64 ``[positions, 1, head_dim / 2]``."""
        angle = np.arange(positions, dtype=np.float32)[:, None, None] * self.inv_freq
        table = np.empty(angle.shape, np.complex64)
        table.real, table.imag = np.cos(angle), np.sin(angle)
        return table

    def forward(
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """Hidden states of one flat batch; writes its K and V into `kv_caches`.

        Args:
            input_ids: ``[num_tokens]``, each below ``vocab_size``.
            positions: ``[num_tokens]``, place of each token in its own request.
            kv_caches: one cache per layer.
            attn_metadata: which rows and which blocks belong to whom.

        Returns:
            float32 ``[num_tokens, hidden_size]`` after the last norm.
        """
        n = len(input_ids)
        heads, rotated = self.num_heads, self.num_heads + self.num_kv_heads
        attend = self.attention.forward
        try:
            rope = self._rope[positions]
        except IndexError:
            self._rope = self._rope_table(2 * int(positions.max()))
            rope = self._rope[positions]
        try:
            x = self.embed_tokens[input_ids]
        except IndexError:
            raise IndexError(
                f"input_ids holds {int(np.max(input_ids))}, but the vocabulary ends at "
                f"{len(self.embed_tokens) - 1}: an argmax over several rows of logits at once "
                "gives such ids"
            ) from None
        # The attention lets exp overflow and looks at the result; see `mini_vllm.attention`.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
                qkv = np.matmul(self._rms_norm(x), layer.qkv)
                if layer.qkv_bias is not None:
                    qkv += layer.qkv_bias
                qkv = qkv.reshape(n, -1, self.head_dim)
                # A rotation by an angle is a product with a unit complex number.
                pairs = qkv[:, :rotated].view(np.complex64)
                pairs *= rope
                attended = attend(
                    qkv[:, :heads], qkv[:, heads:rotated], qkv[:, rotated:], kv_cache, attn_metadata
                )
                x += np.matmul(attended, layer.o)
                if layer.o_bias is not None:
                    x += layer.o_bias

                gate_up = np.matmul(self._rms_norm(x), layer.gate_up)
                if layer.gate_up_bias is not None:
                    gate_up += layer.gate_up_bias
                half_gate, up = gate_up
                silu = np.tanh(half_gate)
                silu += 1
                silu *= half_gate
                silu *= up
                x += np.matmul(silu, layer.down)
                if layer.down_bias is not None:
                    x += layer.down_bias
            x = self._rms_norm(x)
        x *= self.norm
        return x

    def compute_logits(self, hidden: Array) -> Array:
        """float32 ``[n, vocab_size]`` from hidden states ``[n, hidden_size]``."""
        logits: Array = np.matmul(hidden, self.lm_head)
        return logits

    def _rms_norm(self, x: Array) -> Array:
        """RMSNorm (Zhang and Sennrich, 2019) without its weight, which the next matrix holds."""
        size = x.shape[1]
        if len(x) == 1:  # one row: Python's own floats are faster than numpy calls on arrays of one
            row = x[0]
            return x * np.float32(1 / math.sqrt(row.dot(row) / size + self.config.rms_norm_eps))
        mean = np.einsum("ij,ij->i", x, x)
        mean *= np.float32(1 / size)
        mean += np.float32(self.config.rms_norm_eps)
        np.sqrt(mean, out=mean)
        normed: Array = x / mean[:, None]
        return normed


def interleaved(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Order of rows that makes neighbours of each rotated pair ``(i, i + head_dim / 2)``.

    Two neighbouring float32 are one complex64. q and k are both reordered, so their products stay
    the same.
    """
    one = np.arange(head_dim).reshape(2, -1).T.reshape(-1)
    return (np.arange(heads)[:, None] * head_dim + one).reshape(-1)

"""The Llama decoder of `mini_vllm/models/llama.py` in torch: the same classes on the same checkpoint.

Mirrors `vllm/model_executor/models/llama.py`, as the numpy one does; lay the two files side by side. What is
different: the tensors lie on a device and may have 16 bits, and then norms, angles and softmax are still
computed in 32, as upstream.

`forward` never waits for the device and has no shape that depends on a value, so a CUDA graph can hold it,
with an attention backend that keeps to the same. Code that captures it hands in tensors that stay where
they are. Several ranks share it by `mini_vllm/model_loader/shards.py`. Left out: pipeline parallelism, LoRA,
fused kernels (upstream adds and norms in one).

Shapes below: n tokens in the batch, D numbers a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from mini_vllm.gpu.backend import AttentionMetadata, TorchAttention, TritonAttention
from mini_vllm.gpu.quantization import QuantizedLinear
from mini_vllm.layers.linear import Linear as NumpyLinear
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.layers.quantization.base import NoQuantizationConfig
from mini_vllm.layers.rotary_embedding import rope_inv_freq, rope_mscale

if TYPE_CHECKING:
    from mini_vllm.config.model import LlamaConfig


class AttentionBackend(Protocol):
    """What the model asks of its attention; see `mini_vllm/gpu/backend.py`."""

    def get_kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]: ...

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: AttentionMetadata,
        output: Tensor | None = None,
    ) -> Tensor: ...


def default_device() -> torch.device:
    """The GPU where torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair `(x[i], x[i + R / 2])` of each head by its position's angle.

    Args:
        x: `[n, heads, D]`; of a head the first R numbers are turned, all of them as a rule.
        cos, sin: `[n, 1, R / 2]` in x's dtype, of `position * inv_freq`.

    Source: `vllm/model_executor/layers/rotary_embedding/common.py:144 ApplyRotaryEmb.forward_static`.
    """
    half = cos.shape[-1]
    if x.shape[-1] == 2 * half:
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
    x1, x2, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest), dim=-1)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, `[n, size]`, from the two side by side, `[n, 2 * size]`
    (`vllm/model_executor/layers/activation.py:138 SiluAndMul.forward_native`)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class RMSNorm:
    """Each row divided by its root mean square, then scaled, in float32 up to the scaling
    (`vllm/model_executor/layers/layernorm.py:38 RMSNorm`)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, hidden_size]` to the same."""
        x32 = x.float()
        variance = x32.pow(2).mean(dim=-1, keepdim=True)
        normed = x32 * torch.rsqrt(variance + self.eps)
        return normed.to(x.dtype) * self.weight


class Linear:
    """`x @ weight.T + bias`, for one projection of the checkpoint or several side by side.

    A layer only calls it, so a class with other weights and the same call can stand in its place:
    `QuantizedLinear` does.

    Args:
        weights: tensors by Hugging Face name; there a matrix is `[out, in]`, and it stays so here.
        names: projections whose outputs stand side by side in the result.
        bias: whether they have one.
    """

    def __init__(self, weights: Mapping[str, Tensor], names: list[str], bias: bool) -> None:
        matrices = [weights[f"{name}.weight"] for name in names]
        self.weight = matrices[0] if len(names) == 1 else torch.cat(matrices)  # [out, in]
        self.bias = torch.cat([weights[f"{name}.bias"] for name in names]) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, in]` to `[n, out]`."""
        return F.linear(x, self.weight, self.bias)


Apply = Callable[[Tensor], Tensor]
MakeLinear = Callable[[int, dict[str, int], bool], Apply]
"""Makes a layer: its input size, the output size of each projection by name, whether it has a bias."""


class LlamaMLP:
    """The feed-forward half of a layer
    (`vllm/model_executor/models/llama.py:81 LlamaMLP`)."""

    def __init__(self, config: LlamaConfig, prefix: str, linear: MakeLinear) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        gate_up = {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
        self.gate_up_proj = linear(hidden, gate_up, config.mlp_bias)
        self.down_proj = linear(inner, {f"{prefix}.down_proj": hidden}, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_and_mul(self.gate_up_proj(x)))


class LlamaAttention:
    """The projections around attention, in which tokens meet
    (`vllm/model_executor/models/llama.py:124 LlamaAttention`)."""

    def __init__(self, config: LlamaConfig, prefix: str, linear: MakeLinear) -> None:
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv = {f"{prefix}.q_proj": q_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
        self.qkv_proj = linear(hidden, qkv, bias)
        self.o_proj = linear(q_size, {f"{prefix}.o_proj": hidden}, bias)

    def project(
        self, cos_sin: tuple[Tensor, Tensor], hidden_states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, turned by their positions: `[n, heads, D]` each."""
        qkv = self.qkv_proj(hidden_states).unflatten(1, (-1, self.head_dim))
        q_and_k, v = qkv[:, : -self.num_kv_heads], qkv[:, -self.num_kv_heads :]
        q_and_k = apply_rotary_emb(q_and_k, *cos_sin)
        return q_and_k[:, : self.num_heads], q_and_k[:, self.num_heads :], v


class LlamaDecoderLayer:
    """Attention, then the MLP, each on a normed copy and added to what came in
    (`vllm/model_executor/models/llama.py:253 LlamaDecoderLayer`)."""

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, Tensor], prefix: str, linear: MakeLinear
    ) -> None:
        eps = config.rms_norm_eps
        self.input_layernorm = RMSNorm(weights[f"{prefix}.input_layernorm.weight"], eps)
        self.self_attn = LlamaAttention(config, f"{prefix}.self_attn", linear)
        self.post_attention_layernorm = RMSNorm(
            weights[f"{prefix}.post_attention_layernorm.weight"], eps
        )
        self.mlp = LlamaMLP(config, f"{prefix}.mlp", linear)

    def forward(
        self,
        cos_sin: tuple[Tensor, Tensor],
        hidden_states: Tensor,
        attn: AttentionBackend,
        kv_cache: Tensor,
        attn_metadata: AttentionMetadata,
    ) -> Tensor:
        query, key, value = self.before_attention(cos_sin, hidden_states)
        attn_output = attn.forward(query, key, value, kv_cache, attn_metadata)
        return self.after_attention(hidden_states, attn_output)

    def before_attention(
        self, cos_sin: tuple[Tensor, Tensor], hidden_states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, `[n, heads, D]` each, of the rows that come in."""
        return self.self_attn.project(cos_sin, self.input_layernorm(hidden_states))

    def after_attention(self, hidden_states: Tensor, attn_output: Tensor) -> Tensor:
        """The rows that go out, of those that came in and `[n, num_heads * D]` from attention."""
        hidden_states = hidden_states + self.self_attn.o_proj(attn_output)
        return hidden_states + self.mlp.forward(self.post_attention_layernorm(hidden_states))


class LlamaForCausalLM:
    """The model. Holds weights, no state of any request: that lives in the KV cache.

    Args:
        config: checked configuration.
        weights: arrays by Hugging Face name; see `checkpoint.load_weights`. Floats are float32; what a
            quantised checkpoint has else, `quantization.py` understands.
        attention: backend; a `TorchAttention` when None.
        dtype: of weights, hidden states and KV cache.
        device: where they lie; None: `default_device`.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, NDArray[Any]],
        attention: AttentionBackend | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        self.config = config
        self.attention: AttentionBackend = TorchAttention() if attention is None else attention
        self.dtype = dtype
        self.device = default_device() if device is None else torch.device(device)
        self.quant_config = get_quantization_config(config.quantization_config)
        quantized = not isinstance(self.quant_config, NoQuantizationConfig)
        # Of a quantised checkpoint the layers make their own tensors.
        tensors = {
            name: torch.tensor(array, dtype=dtype, device=self.device)
            for name, array in weights.items()
            if not (quantized and "_proj." in name)
        }

        def linear(input_size: int, output_sizes: dict[str, int], bias: bool) -> Apply:
            if not quantized:
                return Linear(tensors, list(output_sizes), bias)
            layer = NumpyLinear(weights, input_size, output_sizes, bias, self.quant_config)
            kernel = isinstance(self.attention, TritonAttention)
            return QuantizedLinear(layer, dtype, self.device, kernel=kernel)

        self.embed_tokens = tensors["model.embed_tokens.weight"]
        self.layers = [
            LlamaDecoderLayer(config, tensors, f"model.layers.{i}", linear)
            for i in range(config.num_hidden_layers)
        ]
        self.norm = RMSNorm(tensors["model.norm.weight"], config.rms_norm_eps)
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self.lm_head = Linear(tensors, [head], bias=False)
        self.set_max_model_len(config.default_max_model_len)
        self.aux_hidden_state_layers: tuple[int, ...] = ()
        """As `mini_vllm.models.llama.LlamaForCausalLM.aux_hidden_state_layers`."""

    def set_max_model_len(self, max_model_len: int) -> None:
        """As `mini_vllm.models.llama.LlamaForCausalLM.set_max_model_len`."""
        inv_freq = rope_inv_freq(self.config, max_model_len)
        self.inv_freq = torch.tensor(inv_freq, device=self.device)
        self.mscale = rope_mscale(self.config, max_model_len)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[Tensor],
        attn_metadata: AttentionMetadata,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Hidden states of one flat batch; writes its K and V into `kv_caches`.

        Args:
            input_ids: int32 or int64 `[n]` on the device, each below `vocab_size`.
            positions: integers `[n]`, place of each token in its own request.
            kv_caches: one cache per layer.
            attn_metadata: which rows and which blocks belong to which request.

        Returns:
            `[n, hidden_size]` after the last norm, in the model's dtype; and, where `aux_hidden_state_layers`
            names any, beside it their hidden states, from the lowest layer to the highest.

        Source: `vllm/model_executor/models/llama.py:395 LlamaModel.forward`.
        """
        hidden_states, cos_sin = self.embed(input_ids, positions)
        inputs_of_layers = []
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            inputs_of_layers.append(hidden_states)
            hidden_states = layer.forward(
                cos_sin, hidden_states, self.attention, kv_cache, attn_metadata
            )
        if not self.aux_hidden_state_layers:
            return self.norm(hidden_states)
        inputs_of_layers.append(hidden_states)
        aux_layers = sorted(set(self.aux_hidden_state_layers))
        return self.norm(hidden_states), [inputs_of_layers[i] for i in aux_layers]

    def embed(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What goes into the first layer: hidden states `[n, hidden_size]`, and cos and sin,
        `[n, 1, D / 2]`, of this step's positions. Upstream looks these up in a table of every position."""
        hidden_states = self.embed_input_ids(input_ids)
        angles = positions.float()[:, None, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.mscale != 1:
            cos, sin = cos * self.mscale, sin * self.mscale
        return hidden_states, (cos.to(self.dtype), sin.to(self.dtype))

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Each token's row of the embedding
        (`vllm/model_executor/models/llama.py:392 LlamaModel.embed_input_ids`)."""
        return F.embedding(input_ids, self.embed_tokens)

    def lend_embed_tokens(self) -> NDArray[np.float32]:
        """The embedding as numpy has it, for a drafter whose checkpoint has none."""
        array: NDArray[np.float32] = self.embed_tokens.float().cpu().numpy()
        return array

    def lend_lm_head(self) -> NumpyLinear:
        """The LM head, likewise."""
        weight = {"lm_head.weight": self.lm_head.weight.float().cpu().numpy()}
        sizes = {"lm_head": self.config.vocab_size}
        return NumpyLinear(weight, self.config.hidden_size, sizes, False, NoQuantizationConfig())

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        """As `mini_vllm.models.llama.LlamaForCausalLM.get_eagle3_default_aux_hidden_state_layers`."""
        n = self.config.num_hidden_layers
        return 2, n // 2, n - 3

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """`[n, vocab_size]` in the model's dtype, from hidden states `[n, hidden_size]`."""
        return self.lm_head(hidden_states)

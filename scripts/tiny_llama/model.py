"""The Llama that is trained, in plain torch, with the weight names of a Hugging Face checkpoint."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.tiny_llama.folder import CONFIG

HIDDEN: int = CONFIG["hidden_size"]
HEADS: int = CONFIG["num_attention_heads"]
KV_HEADS: int = CONFIG["num_key_value_heads"]
HEAD_DIM: int = CONFIG["head_dim"]
LAYERS: int = CONFIG["num_hidden_layers"]
EPS: float = CONFIG["rms_norm_eps"]


def rotary_tables(length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation, `[length, head_dim]`, both halves alike."""
    exponent = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM
    angle = torch.outer(torch.arange(length).float(), CONFIG["rope_theta"] ** -exponent)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs `(i, i + head_dim / 2)` of `x [batch, heads, length, head_dim]`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = _linear(HIDDEN, HEADS * HEAD_DIM)
        self.k_proj = _linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.v_proj = _linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o_proj = _linear(HEADS * HEAD_DIM, HIDDEN)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, HEAD_DIM).transpose(1, 2)

        q = rotate(heads(self.q_proj(x)), cos, sin)
        k = rotate(heads(self.k_proj(x)), cos, sin)
        v = heads(self.v_proj(x))
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1).to(q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = _linear(HIDDEN, CONFIG["intermediate_size"])
        self.up_proj = _linear(HIDDEN, CONFIG["intermediate_size"])
        self.down_proj = _linear(CONFIG["intermediate_size"], HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer, normalised before each part."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.mlp = Mlp()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The model. Its state dict, prefixed with `model.`, is the content of `model.safetensors`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=EPS)
        std: float = CONFIG["initializer_range"]
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What adds to the residual stream starts smaller, so that depth does not add up.
                narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=std / math.sqrt(2 * LAYERS) if narrow else std)
        cos, sin = rotary_tables(CONFIG["max_position_embeddings"])
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, token_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits `[batch, length, vocab]` of `token_ids [batch, length]`.

        Args:
            mask: `[batch, 1, length, length]` bool, True where a token may look; causal if None.
        """
        length = token_ids.shape[1]
        x = self.embed_tokens(token_ids)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length], mask)
        return F.linear(self.norm(x), self.embed_tokens.weight)

"""EAGLE's and EAGLE-3's heads in plain torch, trained as they are used: on their own output.

A chain starts at row i, where the target's state is known, and guesses one token in each pass. In
the first pass row i is at position i and reads token i + 1 with the target's state of token i. In pass p,
counted from 0, it is at position i + p and reads token i + 1 + p with the state that the pass before
made in row i. It attends to the first pass's keys up to row i, which came from the target's
states, and to its own of every pass since: the cache that an engine would hold at that moment.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.tiny_llama.folder import CONFIG
from scripts.tiny_llama.model import rotary_tables, rotate

HIDDEN: int = CONFIG["hidden_size"]
HEADS: int = CONFIG["num_attention_heads"]
KV_HEADS: int = CONFIG["num_key_value_heads"]
HEAD_DIM: int = CONFIG["head_dim"]
EPS: float = CONFIG["rms_norm_eps"]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class ChainAttention(nn.Module):
    """Attention of one pass over the first pass's keys and the own row's of each pass since."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.q_proj = _linear(inputs, HEADS * HEAD_DIM)
        self.k_proj = _linear(inputs, KV_HEADS * HEAD_DIM)
        self.v_proj = _linear(inputs, KV_HEADS * HEAD_DIM)
        self.o_proj = _linear(HEADS * HEAD_DIM, HIDDEN)
        cos, sin = rotary_tables(CONFIG["max_position_embeddings"])
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """`x [batch, rows, inputs]` of pass `len(cache)`; its keys and values join `cache`."""
        batch, rows, _ = x.shape
        at = slice(len(cache), len(cache) + rows)

        def heads(y: Tensor) -> Tensor:
            y = y.view(batch, rows, -1, HEAD_DIM).transpose(1, 2)
            return y.repeat_interleave(HEADS // y.shape[1], dim=1)

        q = rotate(heads(self.q_proj(x)), self.cos[at], self.sin[at]) * HEAD_DIM**-0.5
        k = rotate(heads(self.k_proj(x)), self.cos[at], self.sin[at])
        cache.append((k, heads(self.v_proj(x))))
        first, *since = cache
        scores = q @ first[0].transpose(2, 3)
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
        own = [(q * key).sum(-1, keepdim=True) for key, _ in since]
        weights = torch.cat([scores, *own], dim=-1).softmax(-1)
        out = weights[..., :rows] @ first[1]
        for i, (_, value) in enumerate(since):
            out = out + weights[..., rows + i, None] * value
        return self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = _linear(HIDDEN, width)
        self.up_proj = _linear(HIDDEN, width)
        self.down_proj = _linear(width, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class EagleLayer(nn.Module):
    """A decoder layer without a norm before attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = ChainAttention(HIDDEN)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = x + self.self_attn(x, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle(nn.Module):
    """Its state stands for the target's normed one, so the target's LM head reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = _linear(2 * HIDDEN, HIDDEN)
        self.layers = nn.ModuleList([EagleLayer(CONFIG["intermediate_size"])])

    def forward(
        self, embeds: Tensor, state: Tensor, cache: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What the LM head reads, and the state for the next pass: here the same."""
        x = self.fc(torch.cat([embeds, state], dim=-1)).float()
        for layer in self.layers:
            x = layer(x, cache)
        return x, x


class Eagle3Layer(nn.Module):
    """A decoder layer whose attention reads the normed embedding beside the normed state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.hidden_norm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.self_attn = ChainAttention(2 * HIDDEN)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.mlp = Mlp(width)

    def forward(self, embeds: Tensor, state: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(state)], dim=-1)
        x = state + self.self_attn(both, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    """Its first state is `fc` of three of the target's; it has an LM head over fewer tokens."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.fc = _linear(3 * HIDDEN, HIDDEN)
        self.midlayer = Eagle3Layer(width)
        self.norm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.lm_head = _linear(HIDDEN, vocab_size)

    def forward(
        self, embeds: Tensor, state: Tensor, cache: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What the LM head reads, and the state for the next pass."""
        state = self.midlayer(embeds, state, cache)
        return self.norm(state), state


def sizes_of(weights: dict[str, Tensor]) -> tuple[int, int]:
    """Width of the MLP and draft tokens of an EAGLE-3 checkpoint, as `Eagle3` takes them."""
    return len(weights["midlayer.mlp.up_proj.weight"]), len(weights["lm_head.weight"])

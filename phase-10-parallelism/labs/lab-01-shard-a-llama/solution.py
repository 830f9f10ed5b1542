"""Lab 10-01: a whole Llama on several ranks. A solution.

Shapes: n tokens in the step, H numbers in a hidden state. A linear layer's weight is stored as
`[outputs, inputs]` and computes `x @ weight.T`; its bias has one number per output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.distributed.communicator import Communicator
from mini_vllm.model_loader import LlamaConfig

Array = NDArray[Any]
Attend = Callable[[int, Array, Array, Array], Array]

VOCAB_PADDING = 64


@dataclass(frozen=True)
class Rank:
    """Given: one rank.

    Attributes:
        config: the whole model's: `vocab_size`, `hidden_size`, `num_attention_heads`, `num_key_value_heads`,
            `head_dim`, `num_hidden_layers`, and more.
        weights: what your `cut` has kept of each tensor, by its name in the checkpoint.
        communicator: `rank` and `world_size`; `all_reduce(array)`: the sum over the ranks, on each of them;
            `all_gather(array, axis=-1)`: the ranks' arrays side by side, on each of them. Both are entered
            in the ledger, unless the rank is alone. Every rank must make the same calls in the same order.
    """

    config: LlamaConfig
    weights: dict[str, Array]
    communicator: Communicator


def linear(rank: Rank, name: str, x: Array, with_bias: bool = True) -> Array:
    """Given: a linear layer with this rank's weight, such as `model.layers.0.mlp.up_proj`. Its bias is added
    if the model has one."""
    y: Array = x @ rank.weights[f"{name}.weight"].T
    bias = rank.weights.get(f"{name}.bias")
    return y if bias is None or not with_bias else y + bias


def silu_and_mul(gate: Array, up: Array) -> Array:
    """Given: the middle of an MLP. It works on each number by itself."""
    activated: Array = gate / (1 + np.exp(-gate)) * up
    return activated


def rms_norm(rank: Rank, name: str, x: Array) -> Array:
    """Given: each row divided by its root mean square, times the weight."""
    eps = np.float32(rank.config.rms_norm_eps)
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return normed * rank.weights[f"{name}.weight"]


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    return {
        "all-reduces": 16_100,
        "bytes": 11 * 8192 * 2,
        "gathered": 11 * 16_032 * 2,
        "whole": ["input_layernorm", "norm"],
        "kv heads": [2, 1, 1],
        "same bits": [True, False],
    }


# ---- what a rank holds -----------------------------------------------------------------------------


def cut(name: str, weight: Array, config: LlamaConfig, rank: int, size: int) -> Array:
    """What rank `rank` of `size` keeps of a tensor of the checkpoint."""
    layer, kind = name.split(".")[-2:]
    if layer in ("embed_tokens", "lm_head"):
        padding = -len(weight) % VOCAB_PADDING
        weight = np.concatenate([weight, np.zeros((padding, weight.shape[1]), weight.dtype)])
        rows = len(weight) // size
        return weight[rank * rows : (rank + 1) * rows]
    if layer in ("k_proj", "v_proj"):
        heads = max(1, config.num_key_value_heads // size)
        first = rank * config.num_key_value_heads // size
        return weight[first * config.head_dim : (first + heads) * config.head_dim]
    if layer in ("q_proj", "gate_proj", "up_proj"):
        rows = len(weight) // size
        return weight[rank * rows : (rank + 1) * rows]
    if layer in ("o_proj", "down_proj") and kind == "weight":
        columns = weight.shape[1] // size
        return weight[:, rank * columns : (rank + 1) * columns]
    return weight


# ---- what the ranks say ----------------------------------------------------------------------------


def embed(rank: Rank, input_ids: Array) -> Array:
    """The tokens' rows of the embedding, on each rank."""
    weight = rank.weights["model.embed_tokens.weight"]
    places = input_ids - rank.communicator.rank * len(weight)
    mine = (places >= 0) & (places < len(weight))
    found = weight[np.where(mine, places, 0)]
    found[~mine] = 0
    return rank.communicator.all_reduce(found)


def row_linear(rank: Rank, name: str, x: Array) -> Array:
    """A row-parallel layer's whole output, on each rank."""
    part = linear(rank, name, x, with_bias=rank.communicator.rank == 0)
    return rank.communicator.all_reduce(part)


def attention(rank: Rank, layer: int, x: Array, attend: Attend) -> Array:
    """A layer's first half, the same on each rank."""
    prefix = f"model.layers.{layer}.self_attn"
    q = linear(rank, f"{prefix}.q_proj", x)
    k = linear(rank, f"{prefix}.k_proj", x)
    v = linear(rank, f"{prefix}.v_proj", x)
    return row_linear(rank, f"{prefix}.o_proj", attend(layer, q, k, v))


def mlp(rank: Rank, layer: int, x: Array) -> Array:
    """A layer's second half, likewise."""
    prefix = f"model.layers.{layer}.mlp"
    gate = linear(rank, f"{prefix}.gate_proj", x)
    activated = silu_and_mul(gate, linear(rank, f"{prefix}.up_proj", x))
    return row_linear(rank, f"{prefix}.down_proj", activated)


def compute_logits(rank: Rank, x: Array) -> Array:
    """Logits for the whole vocabulary, on each rank."""
    head = "model.embed_tokens" if rank.config.tie_word_embeddings else "lm_head"
    logits = rank.communicator.all_gather(linear(rank, head, x))
    return logits[:, : rank.config.vocab_size]


# ---- given: the whole pass ------------------------------------------------------------------------


def forward(rank: Rank, input_ids: Array, attend: Attend, last: Array) -> Array:
    """Given: one step of a rank, `[len(last), vocab_size]` logits. `last` names the rows that get some."""
    x = embed(rank, input_ids)
    for layer in range(rank.config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        x = x + attention(rank, layer, rms_norm(rank, f"{prefix}.input_layernorm", x), attend)
        x = x + mlp(rank, layer, rms_norm(rank, f"{prefix}.post_attention_layernorm", x))
    return compute_logits(rank, rms_norm(rank, "model.norm", x[last]))

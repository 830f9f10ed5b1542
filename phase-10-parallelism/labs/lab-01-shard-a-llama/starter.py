"""Lab 10-01: a whole Llama on several ranks. Your work: every NotImplementedError.

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
    raise NotImplementedError


# ---- what a rank holds -----------------------------------------------------------------------------


def cut(name: str, weight: Array, config: LlamaConfig, rank: int, size: int) -> Array:
    """What rank `rank` of `size` keeps of a tensor of the checkpoint. A view will do.

    Shares follow each other: rank 0 has the first. What the README calls column-parallel is cut with its
    bias; of what it calls row-parallel only the weight is cut. The vocabulary is padded before it is cut. A
    tensor that is none of these stays whole.

    With more ranks than KV heads, each rank has one KV head whole, and `size / num_key_value_heads` ranks in
    a row have the same one.

    Args:
        name: such as `model.embed_tokens.weight`, `lm_head.weight`, `model.norm.weight`, or, in a layer,
            `model.layers.3.self_attn.q_proj.weight`, `….mlp.down_proj.bias`, `….input_layernorm.weight`.
        size: divides the query heads, the MLP and the padded vocabulary. It divides the KV heads, or they
            divide it.
    """
    raise NotImplementedError


# ---- what the ranks say ----------------------------------------------------------------------------


def embed(rank: Rank, input_ids: Array) -> Array:
    """The tokens' rows of the embedding, `[n, H]`, on each rank. On one rank: `weight[input_ids]`.

    A rank has some of the rows, and is asked for tokens of the whole vocabulary.
    """
    raise NotImplementedError


def row_linear(rank: Rank, name: str, x: Array) -> Array:
    """A row-parallel layer's whole output, `[n, outputs]`, on each rank. On one rank: `linear`.

    Each rank holds the layer's bias whole, if it has one. The output must contain it once.

    Args:
        x: `[n, inputs of this rank]`.
    """
    raise NotImplementedError


def attention(rank: Rank, layer: int, x: Array, attend: Attend) -> Array:
    """A layer's first half, `[n, H]` to `[n, H]`, the same on each rank.

    Compute q, k and v, hand them to `attend`, and its result to `o_proj`.

    Args:
        attend: given. `attend(layer, q, k, v)` turns q and k by their positions, keeps k and v, and attends
            with as many heads as it is handed: `[n, heads * head_dim]` of q gives the same shape. With h
            heads of q for each head of k, the first h attend to the first, and so on.
    """
    raise NotImplementedError


def mlp(rank: Rank, layer: int, x: Array) -> Array:
    """A layer's second half, likewise: `down_proj` of `silu_and_mul` of `gate_proj` and `up_proj`."""
    raise NotImplementedError


def compute_logits(rank: Rank, x: Array) -> Array:
    """Logits for the whole vocabulary, `[n, vocab_size]`, on each rank.

    The head is `lm_head`, or `model.embed_tokens` if `config.tie_word_embeddings`.
    """
    raise NotImplementedError


# ---- given: the whole pass ------------------------------------------------------------------------


def forward(rank: Rank, input_ids: Array, attend: Attend, last: Array) -> Array:
    """Given: one step of a rank, `[len(last), vocab_size]` logits. `last` names the rows that get some."""
    x = embed(rank, input_ids)
    for layer in range(rank.config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        x = x + attention(rank, layer, rms_norm(rank, f"{prefix}.input_layernorm", x), attend)
        x = x + mlp(rank, layer, rms_norm(rank, f"{prefix}.post_attention_layernorm", x))
    return compute_logits(rank, rms_norm(rank, "model.norm", x[last]))

"""The numpy Llama as a list of kernels, in the order in which they are launched.

The functions are those of `models/llama.py`; a test holds the two equal. What is new is that a step's
arrays have names, and that nothing else flows from one kernel to the next: no Python object, no length,
no branch. That is what a capture asks of a model.

For L layers there are 12 L + 3 kernels, and a copy for each layer that an EAGLE-3 head reads. Two in each
layer are `splitting`: the write of K and V, and attention
(`vllm/config/compilation.py:1099 CompilationConfig.set_splitting_ops_for_v1`). Between them lie L + 1 pieces.

A step's inputs, which its runner puts in place (n rows, r requests, both padded where the graph is):

    input_ids, positions    integers `[n]`
    slot_mapping            int64 `[n]`; -1: a row of padding, whose K and V are written nowhere
    query_start_loc         int32 `[r + 1]`; rows past the last belong to no request
    seq_lens                int32 `[r]`; 0, and no rows: a request of padding
    block_table             int32 `[r, max_blocks]`
    kv_cache.0, …           a layer's cache

A GPU would have other kernels for the same work: vLLM adds the residual inside of the norm, for instance,
and its compiler fuses more. So these counts are the simulator's own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.cudagraph.graph import Kernel
from mini_vllm.layers.activation import silu_and_mul
from mini_vllm.layers.rotary_embedding import apply_rotary_emb
from mini_vllm.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP

Ints = NDArray[np.int32]


def check_kernels(model: LlamaForCausalLM) -> None:
    """Raises ValueError where a layer does what the kernels below do not: norms in attention, or experts."""
    for layer in model.layers:
        pairs: list[tuple[Any, Any]] = [
            (layer, LlamaDecoderLayer), (layer.self_attn, LlamaAttention), (layer.mlp, LlamaMLP)
        ]  # fmt: skip
        for part, usual in pairs:
            if type(part) is not usual:
                raise ValueError(
                    f"a {model.config.architecture} runs with cudagraph_mode 'NONE' only: a graph's kernels "
                    f"are a Llama's, and this model has a {type(part).__name__}"
                )


def build_program(model: LlamaForCausalLM, block_size: int) -> list[Kernel]:
    """The model's forward pass. The last kernel writes `normed`, the hidden states after the last norm.

    Raises ValueError for a model whose layers are not a Llama's.
    """
    check_kernels(model)
    c = model.config
    hidden, head_dim = c.hidden_size, c.head_dim
    q_size, kv_size = c.num_attention_heads * head_dim, c.num_key_value_heads * head_dim
    split = partial(split_qkv, c.num_attention_heads, c.num_key_value_heads, head_dim)
    rotate = partial(rotary_emb, c.num_attention_heads + c.num_key_value_heads, head_dim)
    write = partial(kv_cache_update, model.attention, block_size, split)
    kernels = [
        Kernel("embed_tokens", partial(embed, model.embed_tokens), ("input_ids",), "hidden_states", hidden),
        Kernel("cos_sin", partial(cos_sin, model), ("positions",), "cos_sin", c.rotary_dim),
    ]  # fmt: skip
    aux_layers = model.aux_hidden_state_layers
    for i, (layer, window) in enumerate(zip(model.layers, c.sliding_windows, strict=True)):
        cache, of_layer = f"kv_cache.{i}", f"layers.{i}."
        attend = partial(attention, model.attention, block_size, split, window)
        if i in aux_layers:
            kernels.append(_keep_aux_hidden_states(i, hidden))
        attn, mlp = layer.self_attn, layer.mlp
        assert isinstance(mlp, LlamaMLP)
        inner = mlp.gate_up_proj.output_size
        for name, function, inputs, output, width in (
            ("input_layernorm", layer.input_layernorm, ("hidden_states",), "normed", hidden),
            ("qkv_proj", attn.qkv_proj, ("normed",), "qkv", q_size + 2 * kv_size),
            ("rotary_emb", rotate, ("qkv", "cos_sin"), "qkv", q_size + 2 * kv_size),
            ("kv_cache_update", write, ("qkv", cache, "slot_mapping"), None, 0),
            ("attention", attend, ("qkv", cache, "query_start_loc", "seq_lens", "block_table"),
             "attn_output", q_size),
            ("o_proj", attn.o_proj, ("attn_output",), "projected", hidden),
            ("add", np.add, ("hidden_states", "projected"), "hidden_states", hidden),
            ("post_attention_layernorm", layer.post_attention_layernorm, ("hidden_states",),
             "normed", hidden),
            ("gate_up_proj", mlp.gate_up_proj, ("normed",), "gate_up", inner),
            ("silu_and_mul", silu_and_mul, ("gate_up",), "activated", inner // 2),
            ("down_proj", mlp.down_proj, ("activated",), "projected", hidden),
            ("add", np.add, ("hidden_states", "projected"), "hidden_states", hidden),
        ):  # fmt: skip
            splitting = name in ("kv_cache_update", "attention")
            kernels.append(Kernel(of_layer + name, function, inputs, output, width, splitting))
    if len(model.layers) in aux_layers:
        kernels.append(_keep_aux_hidden_states(len(model.layers), hidden))
    kernels.append(Kernel("norm", model.norm, ("hidden_states",), "normed", hidden))
    return kernels


def _keep_aux_hidden_states(layer: int, hidden_size: int) -> Kernel:
    """What goes into this layer, or with the count of layers into the last norm, for an EAGLE-3 head."""
    output = f"aux_hidden_states.{layer}"
    name = f"layers.{layer}.aux_hidden_states"
    return Kernel(name, np.copy, ("hidden_states",), output, hidden_size)


def embed(embed_tokens: Array, input_ids: Ints) -> Array:
    """Integers `[n]` to float32 `[n, hidden_size]`."""
    return embed_tokens[input_ids]


def cos_sin(model: LlamaForCausalLM, positions: Ints) -> Array:
    """Integers `[n]` to float32 `[n, rotary_dim]`: cosines, then sines, of each position's angles."""
    return np.concatenate(model.get_cos_sin(positions), axis=-1)[:, 0]


def rotary_emb(num_heads: int, head_dim: int, qkv: Array, cos_sin: Array) -> Array:
    """q and k turned, v as it was, `[n, width]`; `num_heads` are those of q and k together."""
    heads = qkv.reshape(len(qkv), -1, head_dim)
    cos, sin = np.split(cos_sin[:, None], 2, axis=-1)
    q_and_k = apply_rotary_emb(heads[:, :num_heads], cos, sin)
    return np.concatenate((q_and_k, heads[:, num_heads:]), axis=1).reshape(qkv.shape)


def split_qkv(
    num_heads: int, num_kv_heads: int, head_dim: int, qkv: Array
) -> tuple[Array, Array, Array]:
    """q `[n, num_heads, D]`, k and v `[n, num_kv_heads, D]`."""
    heads = qkv.reshape(len(qkv), -1, head_dim)
    q, k, v = np.split(heads, [num_heads, num_heads + num_kv_heads], axis=1)
    return q, k, v


# A backend's `forward` writes, then attends. Without keys it only attends; and where it is to write alone, it
# is asked for one row at the null block, which is never read.


def kv_cache_update(
    attn: AttentionBackend,
    block_size: int,
    split: Any,
    qkv: Array,
    kv_cache: Array,
    slot_mapping: NDArray[np.int64],
) -> None:
    """Write K and V of each row to its slot; a row whose slot is -1 is left out."""
    q, k, v = split(qkv)
    rows = np.flatnonzero(slot_mapping >= 0)
    metadata = AttentionMetadata(
        np.array([0, 1], np.int32),
        np.ones(1, np.int32),
        np.zeros((1, 1), np.int32),
        slot_mapping[rows],
        block_size,
    )
    if len(rows):
        attn.forward(q[:1], k[rows], v[rows], kv_cache, metadata)


def attention(
    attn: AttentionBackend,
    block_size: int,
    split: Any,
    sliding_window: int | None,
    qkv: Array,
    kv_cache: Array,
    query_start_loc: Ints,
    seq_lens: Ints,
    block_table: Ints,
) -> Array:
    """Attention of all rows that belong to a request, `[query_start_loc[-1], num_heads * D]`.

    How many these are, and how long each request is, is read from the arrays, as a GPU's kernel reads it. So
    one recording serves every step, and requests of padding have no rows.
    """
    num_reqs = int(np.count_nonzero(seq_lens))
    num_rows = int(query_start_loc[-1])
    q, k, v = split(qkv)
    if not num_rows:
        return np.zeros((0, q.shape[1] * q.shape[2]), np.float32)
    metadata = AttentionMetadata(
        query_start_loc[: num_reqs + 1],
        seq_lens[:num_reqs],
        block_table[:num_reqs, : -(-int(seq_lens.max(initial=0)) // block_size)],
        np.zeros(0, np.int64),
        block_size,
        sliding_window=sliding_window,
    )
    return attn.forward(q[:num_rows], k[:0], v[:0], kv_cache, metadata)

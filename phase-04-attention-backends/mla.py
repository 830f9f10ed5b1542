"""MLA's latent cache in numbers: bytes a token, the two equal forms, and why each has its place.

DeepSeek-V3's sizes, from its config.json (https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json).
vLLM: `MLAAttention`, whose file's docstring has the same algebra.

>>> for name, size in cache_bytes(V3).items():
...     print(f"{name:4} {size:>9,} bytes a token, {size / cache_bytes(V3)['MLA']:.1f} times")
MHA  4,997,120 bytes a token, 71.1 times
GQA    249,856 bytes a token, 3.6 times
MLA     70,272 bytes a token, 1.0 times
>>> round(max(difference(seed) for seed in range(20)), 12)
0.0
>>> expanded, absorbed = work(V3)
>>> expanded, absorbed, f"{absorbed / expanded:.1f}"
(81920, 278528, '3.4')
>>> f"{intensity(V3):.0f}"
'242'
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Sizes(NamedTuple):
    """Of a model with MLA; the names are those of its config.json.

    Attributes:
        num_layers: `num_hidden_layers`.
        num_heads: `num_attention_heads`.
        kv_lora_rank: numbers in the latent, from which the keys and values of all heads are made.
        qk_nope_head_dim: numbers of a query or key that come from the latent.
        qk_rope_head_dim: numbers that carry the position. In the key all heads share them.
        v_head_dim: numbers of a value.
    """

    num_layers: int
    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


V3 = Sizes(61, 128, 512, 128, 64, 128)
SMALL = Sizes(1, 4, 16, 8, 4, 6)
"""Small enough for the proof in float64."""


def cache_bytes(sizes: Sizes, kv_heads: int = 8, bytes_a_number: int = 2) -> dict[str, int]:
    """Bytes that a token takes in the cache, all layers together, in 16-bit numbers.

    MHA keeps what every head would attend over. GQA is what a model of this depth would keep with `kv_heads`
    heads of `v_head_dim` numbers, for keys and for values. MLA keeps the latent and the shared position.
    """
    heads = sizes.num_heads * (sizes.qk_nope_head_dim + sizes.qk_rope_head_dim + sizes.v_head_dim)
    numbers = {
        "MHA": heads,
        "GQA": kv_heads * 2 * sizes.v_head_dim,
        "MLA": sizes.kv_lora_rank + sizes.qk_rope_head_dim,
    }
    return {name: count * sizes.num_layers * bytes_a_number for name, count in numbers.items()}


def softmax(scores: Array) -> Array:
    """Over the last axis."""
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(exps / exps.sum(axis=-1, keepdims=True))


def expanded(
    q: Array, q_rope: Array, latent: Array, k_rope: Array, w_k: Array, w_v: Array
) -> Array:
    """Keys and values are made from the latent first, then every head attends over its own.

    Args:
        q: [heads, nope], of one query token. q_rope: [heads, rope].
        latent: [tokens, rank], and k_rope: [tokens, rope]: what the cache holds.
        w_k: [heads, nope, rank] and w_v: [heads, value, rank]: from the latent to a head's key and value.

    Returns [heads, value].
    """
    keys = np.einsum("hnr,tr->htn", w_k, latent)
    values = np.einsum("hvr,tr->htv", w_v, latent)
    scores = np.einsum("hn,htn->ht", q, keys) + np.einsum("hp,tp->ht", q_rope, k_rope)
    weights = softmax(scores / np.sqrt(q.shape[1] + q_rope.shape[1]))
    return np.asarray(np.einsum("ht,htv->hv", weights, values))


def absorbed(
    q: Array, q_rope: Array, latent: Array, k_rope: Array, w_k: Array, w_v: Array
) -> Array:
    """The same, over the cache as it lies there: w_k goes into the query, and w_v comes last.

    q . (w_k c) is (w_k^T q) . c, and the weighted sum of w_v c is w_v times the weighted sum of c. So all
    heads read one vector a token, which is the latent and k_rope: attention with one KV head.
    """
    query = np.concatenate([np.einsum("hn,hnr->hr", q, w_k), q_rope], axis=1)
    cache = np.concatenate([latent, k_rope], axis=1)
    weights = softmax(query @ cache.T / np.sqrt(q.shape[1] + q_rope.shape[1]))
    return np.asarray(np.einsum("hr,hvr->hv", weights @ latent, w_v))


def difference(seed: int, tokens: int = 200, sizes: Sizes = SMALL) -> float:
    """The largest difference between the two forms on random numbers, in float64."""
    rng = np.random.default_rng(seed)
    _, heads, rank, nope, rope, value = sizes
    shapes = (
        (heads, nope), (heads, rope), (tokens, rank), (tokens, rope), (heads, nope, rank),
        (heads, value, rank),
    )  # fmt: skip
    given = [rng.standard_normal(shape) for shape in shapes]
    return float(np.abs(expanded(*given) - absorbed(*given)).max())


def work(sizes: Sizes) -> tuple[int, int]:
    """Floating-point operations for one query token and one cached token, in one layer, in both forms.

    The expanded form is counted with its keys and values at hand. A prompt makes them once for all its query
    tokens, so there the work for each pair decides, and vLLM expands. A decode step would make them anew for
    every token of the context, so it absorbs.
    """
    head = sizes.qk_nope_head_dim + sizes.qk_rope_head_dim + sizes.v_head_dim
    latent = sizes.kv_lora_rank + sizes.qk_rope_head_dim + sizes.kv_lora_rank
    return 2 * sizes.num_heads * head, 2 * sizes.num_heads * latent


def intensity(sizes: Sizes, bytes_a_number: int = 2) -> float:
    """Operations of an absorbed decode step for each byte of the cache that it has to read."""
    return work(sizes)[1] / ((sizes.kv_lora_rank + sizes.qk_rope_head_dim) * bytes_a_number)

"""Lab 04-07: where two runs of one prompt part, and sums whose order does not depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Stage = tuple[str, Array]

# -- Given: what the functions take and return.


class Difference(NamedTuple):
    """Where two runs part.

    Attributes:
        stage: name of the first part of the model whose results differ.
        index: its place in the order of the computation, from 0.
        most_ulps: the largest distance between two numbers there, in float32 steps.
        share: the part of its numbers that differ (0 to 1).
    """

    stage: str
    index: int
    most_ulps: int
    share: float


class Rows(NamedTuple):
    """A request in a step.

    Attributes:
        query: float32 `[m, num_heads, D]`, of its newest `m` tokens.
        key, value: float32 `[seq_len, num_kv_heads, D]`, of all of its tokens.
    """

    query: Array
    key: Array
    value: Array


AS_BEFORE, RARER, GONE = "as before", "rarer", "gone"


# -- The solution.


def predictions() -> dict[str, str | int]:
    """The ten answers of the README."""
    return {
        "seed=7": AS_BEFORE,
        "top_k=1": AS_BEFORE,
        "no prefix caching": AS_BEFORE,
        "float32": RARER,
        "max_num_seqs=1": GONE,
        "VLLM_BATCH_INVARIANT=1 on a CPU": AS_BEFORE,
        "first part in vLLM on a CPU": "attention",
        "segments, 16 who decode": 16,
        "segments, 17 who decode": 1,
        "keys in turn, 4000 tokens, beside 16": 4000,
    }


def ulps(a: Array, b: Array) -> NDArray[np.int64]:
    """How many float32 numbers lie between two, plus one; 0 where they are equal, and 0.0 equals -0.0.

    Given. The bit patterns of positive floats, read as whole numbers, are in the order of the floats.

    Args:
        a, b: finite float32 of one shape, in any layout.

    Returns:
        int64 of that shape.
    """

    def place(x: Array) -> NDArray[np.int64]:
        bits = np.ascontiguousarray(x, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(place(a) - place(b))


def same_stages(alone: Sequence[Stage], beside: Sequence[Stage]) -> None:
    """Raise ValueError where two runs do not have the same stages in the same order; it names them. Given."""
    names = [name for name, _ in alone], [name for name, _ in beside]
    if names[0] != names[1]:
        raise ValueError(f"the runs have different stages: {names[0]} and {names[1]}")


def first_difference(alone: Sequence[Stage], beside: Sequence[Stage]) -> Difference | None:
    """The first stage with a distance above 0 in any number."""
    same_stages(alone, beside)
    for index, ((name, a), (_, b)) in enumerate(zip(alone, beside, strict=True)):
        distance = ulps(a, b)
        if distance.any():
            share = np.count_nonzero(distance) / distance.size
            return Difference(name, index, int(distance.max()), share)
    return None


def margin(logits: Array) -> float:
    """How far the largest logit is above the second largest, in float64. Given.

    Args:
        logits: float32 `[vocab_size]`, two at least.
    """
    second, first = np.sort(logits.astype(np.float64))[-2:]
    return float(first - second)


def can_flip(logits: Array, noise: float) -> bool:
    """The winner may fall by `noise` while another rises by it, and a tie goes to the lower id."""
    lowered = logits.astype(np.float64) + noise
    winner = int(np.argmax(logits))
    lowered[winner] -= 2 * noise
    return int(np.argmax(lowered)) != winner


def fixed_sum(terms: Array) -> Array:
    """The back half onto the front half, until one number is left; zeros fill up to a power of two."""
    terms = np.asarray(terms, np.float32)
    length = terms.shape[-1]
    size = 1
    while size < length:
        size *= 2
    left = np.zeros((*terms.shape[:-1], size), np.float32)
    left[..., :length] = terms
    while size > 1:
        size //= 2
        left = left[..., :size] + left[..., size:]
    total: Array = left[..., 0]
    return total


def linear(x: Array, weight: Array) -> Array:
    """A row at a time, all columns at once."""
    columns = np.ascontiguousarray(weight.T)
    return np.stack([fixed_sum(row * columns) for row in x])


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """`x / sqrt(mean(x * x) + eps) * weight` for each row, whose bits depend on that row alone. Given.

    Args:
        x: float32 `[n, size]`.
        weight: float32 `[size]`.

    Returns:
        float32 `[n, size]`.
    """
    variance = fixed_sum(x * x) / np.float32(x.shape[-1])
    normed: Array = x / np.sqrt(variance + np.float32(eps))[..., None] * weight
    return normed


def for_heads(key: Array, value: Array, num_heads: int) -> tuple[Array, Array]:
    """K and V of each query head, with what is added up in the last axis. Given.

    Query heads `h * G .. h * G + G - 1` share KV head `h`.

    Args:
        key, value: float32 `[seq_len, num_kv_heads, D]`.

    Returns:
        float32 `[num_heads, seq_len, D]` and `[num_heads, D, seq_len]`.
    """
    group = num_heads // key.shape[1]
    k = key.transpose(1, 0, 2).repeat(group, axis=0)
    v = value.transpose(1, 2, 0).repeat(group, axis=0)
    return k, v


def attend(requests: Sequence[Rows], scale: float) -> list[Array]:
    """Each request by itself: hidden keys weigh nothing, and zeros at the end change no sum."""
    return [_attend(*one, np.float32(scale)) for one in requests]


def _attend(query: Array, key: Array, value: Array, scale: np.float32) -> Array:
    m, num_heads, _ = query.shape
    seq_len = len(key)
    k, v = for_heads(key, value, num_heads)
    out = np.empty_like(query)
    for row in range(m):
        sees = seq_len - m + row + 1
        scores = fixed_sum(query[row][:, None] * k[:, :sees]) * scale
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        above = fixed_sum(weights[:, None] * v[..., :sees])
        out[row] = above / fixed_sum(weights)[:, None]
    return out

"""Lab 04-07: where two runs of one prompt part, and sums whose order does not depend on the batch. Your
work: every NotImplementedError. Functions that say "Given" are written.

layers.py uses `first_difference` and what comes before it. The tests, and `layers.py --on mine`, put
`linear`, `rms_norm` and `attend` into the shipped model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Stage = tuple[str, Array]

# -- Given: what the functions take and return. Nothing to do here.


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
"""How many of the changing answers still change with a setting: as many, fewer, none. If one still does,
they are not `gone`.
"""


# -- Your work: before you read on.


def predictions() -> dict[str, str | int]:
    """The ten answers of the README, by the names given there."""
    raise NotImplementedError


# -- Your work: where they part.


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
    """The first stage, in the order of the computation, at which two runs are not equal to the bit.

    0.0 and -0.0 count as equal, as in `ulps`.

    Args:
        alone, beside: what each part of the model returned for one request: names, and float32 arrays.

    Returns:
        What differs there, or None where all is equal.

    Raises:
        ValueError: the runs do not have the same stages in the same order; the first line is given.
    """
    same_stages(alone, beside)
    raise NotImplementedError


# -- Your work: the near tie.


def margin(logits: Array) -> float:
    """How far the largest logit is above the second largest, in float64. Given.

    Args:
        logits: float32 `[vocab_size]`, two at least.
    """
    second, first = np.sort(logits.astype(np.float64))[-2:]
    return float(first - second)


def can_flip(logits: Array, noise: float) -> bool:
    """Whether another token may win, if each logit moves by at most `noise`, up or down.

    Args:
        logits: float32 `[vocab_size]`. The winner is `argmax`, which takes the lowest id of equals.
        noise: at least 0. Calculate in float64.
    """
    raise NotImplementedError


# -- Your work: an order that knows no batch.


def fixed_sum(terms: Array) -> Array:
    """The sums over the last axis, in an order that depends on nothing but a term's place in its own row.

    The same row has the same sum to the bit, whatever other rows there are, wherever it stands among them,
    and however the array lies in memory. Zeros after its last term change nothing, either.

    Args:
        terms: float32 `[..., length]`; length may be 0.

    Returns:
        float32 `[...]`.
    """
    raise NotImplementedError


def linear(x: Array, weight: Array) -> Array:
    """`x @ weight`, where a row's bits depend on that row and the weight alone.

    Args:
        x: float32 `[n, in]`, n at least 1.
        weight: float32 `[in, out]`.

    Returns:
        float32 `[n, out]`.
    """
    raise NotImplementedError


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
    """Causal attention of a whole step, where a row's bits depend on its own query and on the keys and
    values up to it.

    They do not depend on how many requests there are, on their lengths, or on how many rows of the same
    request are computed at once: a token has the same result in a prefill, in a chunk and as a decode.
    Row `j` of a request's `m` is at position `seq_len - m + j`. `for_heads` gives each query head its K
    and V.

    Args:
        requests: one at least.
        scale: what a score is multiplied by, before the softmax.

    Returns:
        float32 `[m, num_heads, D]` for each request, in their order.
    """
    raise NotImplementedError

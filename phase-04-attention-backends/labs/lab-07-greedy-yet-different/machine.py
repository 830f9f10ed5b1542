"""Given: a machine on paper. It has the three kernels that a decoder needs, and a rule for the order of each.

Every rule looks at the batch, as real ones do, because a machine with many cores wants work for all of
them. The arithmetic is numpy's addition and multiplication, one after the other in float32, so it gives
the same bits on every laptop, which a BLAS does not. Nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
TILE_ROWS = 8
"""Rows that one core takes at once. What is left over at the end of a batch goes to another kernel."""


def slices_of_k(num_rows: int) -> int:
    """In how many pieces a matrix product cuts each sum, so that few rows make work for many cores.

    cuBLAS and its like have such a rule, and call the pieces split-K.
    """
    return 8 if num_rows < 4 else 4 if num_rows < 32 else 1


def matmul(x: Array, weight: Array) -> Array:
    """`x @ weight`, float32 `[n, K]` and `[K, N]` to `[n, N]`."""
    whole = len(x) // TILE_ROWS * TILE_ROWS
    pieces = slices_of_k(len(x))
    return np.concatenate(
        [_in_slices(x[:whole], weight, pieces), _in_lanes(x[whole:], weight, pieces)]
    )


def _in_slices(x: Array, weight: Array, pieces: int) -> Array:
    """Each slice from front to back, then the slices."""
    total = np.zeros((len(x), weight.shape[1]), np.float32)
    for places in np.array_split(np.arange(len(weight)), pieces):
        piece = np.zeros_like(total)
        for k in places.tolist():
            piece += x[:, k, None] * weight[k]
        total += piece
    return total


def _in_lanes(x: Array, weight: Array, lanes: int) -> Array:
    """Lane `i` has the terms `i`, `i + lanes` and so on."""
    total = np.zeros((len(x), weight.shape[1]), np.float32)
    for lane in range(lanes):
        piece = np.zeros_like(total)
        for k in range(lane, len(weight), lanes):
            piece += x[:, k, None] * weight[k]
        total += piece
    return total


def linear(x: Array, weight: Array) -> Array:
    """The same, under the name that the model uses."""
    return matmul(x, weight)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Each row of float32 `[n, size]` over its root mean square, times `weight`.

    Few rows get more threads each. vLLM's own kernel has such a rule: see the README.
    """
    threads = 32 if len(x) < 16 else 8
    squares = x * x
    parts = [_front_to_back(squares[:, i::threads]) for i in range(threads)]
    variance = _front_to_back(np.stack(parts, axis=1)) / np.float32(x.shape[1])
    normed: Array = x / np.sqrt(variance + np.float32(eps))[:, None] * weight
    return normed


def _front_to_back(terms: Array) -> Array:
    total = np.zeros(len(terms), np.float32)
    for k in range(terms.shape[1]):
        total += terms[:, k]
    return total


def attend(requests: Sequence[Any], scale: float) -> list[Array]:
    """Causal attention of each request's newest rows to all of its tokens, by the rule of vLLM's Triton
    backend.

    Where everybody decodes and few do, the keys of a request go to 16 programs; otherwise one program
    reads them all.

    Args:
        requests: each with `query` `[m, num_heads, D]` and `key`, `value` `[seq_len, num_kv_heads, D]`.
        scale: what a score is multiplied by.

    Returns:
        float32 `[m, num_heads, D]` for each request.
    """
    decode = all(len(one.query) == 1 for one in requests)
    few = len(requests) <= 128 // requests[0].key.shape[1]
    pieces = 16 if decode and few else 1
    return [_attend_one(one, scale, pieces) for one in requests]


def _attend_one(one: Any, scale: float, pieces: int) -> Array:
    m, num_heads, head_size = one.query.shape
    seq_len, num_kv_heads, _ = one.key.shape
    out = np.empty_like(one.query)
    for row, head in np.ndindex(m, num_heads):
        sees = seq_len - m + row + 1
        kv_head = head // (num_heads // num_kv_heads)
        scores = np.zeros(sees, np.float32)
        for d in range(head_size):
            scores += one.query[row, head, d] * one.key[:sees, kv_head, d]
        scores = scores * np.float32(scale)
        weights = np.exp(scores - scores.max())
        above = np.zeros(head_size, np.float32)
        below = np.float32(0)
        for places in np.array_split(np.arange(sees), pieces):
            part, total = np.zeros(head_size, np.float32), np.float32(0)
            for j in places.tolist():
                part += weights[j] * one.value[j, kv_head]
                total += weights[j]
            above, below = above + part, below + total
        out[row, head] = above / below
    return out

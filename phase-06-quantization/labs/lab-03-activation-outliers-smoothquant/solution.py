"""Lab 06-03: the reference solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]


def predictions() -> dict[str, list[float]]:
    return {
        "code of a quiet channel": [1],
        "s, input, weight": [16, 4, 4],
        "planted again": [64, 64],
    }


def quantize_activations(x: Floats) -> tuple[Ints, Floats]:
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    scale = np.where(scale == 0, 1.0, scale)
    return np.rint(x / scale).astype(np.int32), scale


def quantize_weight(weight: Floats) -> tuple[Ints, Floats]:
    """Given. Likewise for a weight: a scale for each output, `[out, 1]`."""
    return quantize_activations(weight)


def w8a8(x: Floats, weight: Floats) -> Floats:
    x_codes, x_scale = quantize_activations(x)
    w_codes, w_scale = quantize_weight(weight)
    # float64 adds integers up to 2^53 exactly, and numpy multiplies matrices of integers slowly.
    sums = x_codes.astype(np.float64) @ w_codes.T.astype(np.float64)
    return sums * x_scale * w_scale.T


def plant(
    norm: Floats, weights: Sequence[Floats], channels: Sequence[int], factor: float
) -> tuple[Floats, list[Floats]]:
    """The same layers with some input channels `factor` times as loud: a new norm, new weights.

    Args:
        weights: of all layers that get the norm's output.
        channels: which channels become loud.
        factor: a power of two, so that no digit of the outputs changes.

    Returns:
        In the dtypes that came in.
    """
    louder = np.ones_like(norm)
    louder[list(channels)] = factor
    return norm * louder, [weight / louder for weight in weights]


def smoothing_scales(absmax_x: Floats, weights: Sequence[Floats], alpha: float = 0.5) -> Floats:
    absmax_w = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
    usable = (absmax_x > 0) & (absmax_w > 0)
    s = np.ones(len(absmax_x))
    s[usable] = absmax_x[usable] ** alpha / absmax_w[usable] ** (1 - alpha)
    return s


def smooth(
    norm: Floats, weights: Sequence[Floats], absmax_x: Floats, alpha: float = 0.5
) -> tuple[Floats, list[Floats]]:
    s = smoothing_scales(absmax_x, weights, alpha)
    return norm / s, [weight * s for weight in weights]

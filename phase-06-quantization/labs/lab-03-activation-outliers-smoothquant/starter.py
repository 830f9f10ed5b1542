"""Lab 06-03: activations in 8 bits, and what one loud channel does. Your work: every NotImplementedError.

An input `x` is `[n, in]`, a row for each token and a channel for each column; a weight is `[out, in]`; a
layer gives `x @ weight.T`. Before it stands an RMSNorm: `x` is `normed * norm`, with `norm` `[in]`, its
weight. Nothing that a function is given may be changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the three questions of the README, under the names that stand there."""
    raise NotImplementedError


# ---- a product of integers -----------------------------------------------------------------------


def quantize_activations(x: Floats) -> tuple[Ints, Floats]:
    """A scale for each token, and the nearest codes, -127 to 127; a tie goes to the even code.

    Returns:
        codes, integers, `[n, in]`, scale `[n, 1]`. The largest magnitude of a token has the code 127 or
        -127. A token of zeros has the scale 1.
    """
    raise NotImplementedError


def quantize_weight(weight: Floats) -> tuple[Ints, Floats]:
    """Given. Likewise for a weight: a scale for each output, `[out, 1]`."""
    return quantize_activations(weight)


def w8a8(x: Floats, weight: Floats) -> Floats:
    """The layer's outputs, `[n, out]`, from codes of both.

    The codes are multiplied and added up as integers, exactly, however many inputs there are; the scales
    come in once, when the sums are done.
    """
    raise NotImplementedError


# ---- a loud channel, given -----------------------------------------------------------------------


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


# ---- where the loudness can go -------------------------------------------------------------------


def smoothing_scales(absmax_x: Floats, weights: Sequence[Floats], alpha: float = 0.5) -> Floats:
    """s, `[in]`: what each channel is divided by.

    `s = absmax_x ** alpha / absmax_w ** (1 - alpha)`, where `absmax_w` is the largest magnitude of the
    channel's column, over all the weights.

    Args:
        absmax_x: `[in]`, the largest magnitude of each channel over the calibration texts.
        weights: of all layers that get this input.
        alpha: 0 to 1.

    Returns:
        1 where the channel or its columns are all 0.
    """
    raise NotImplementedError


def smooth(
    norm: Floats, weights: Sequence[Floats], absmax_x: Floats, alpha: float = 0.5
) -> tuple[Floats, list[Floats]]:
    """The same layers with smoother inputs, at no cost when they run: a new norm, new weights."""
    raise NotImplementedError

"""Lab 06-01: int8 weights with a scale, and a linear layer that computes with them. A solution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.quantization.base import LinearMethod, Parameter

Array = NDArray[np.float32]
Codes = NDArray[np.int8]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names that stand there."""
    return {
        "codes of a small row": 3,
        "codes of -0.9, 0.005, 1.0": [-115, 1, 127],
        "127.5 without the clip": -128,
        "gigabytes": 7.51,
        "milliseconds": 24.1,
    }


def choose_scale(weight: Array, strategy: str) -> Array:
    """The size of one step: the largest magnitude over half of the 255 steps from -128 to 127.

    Args:
        weight: float32 `[out, in]`, finite.
        strategy: `channel`, a scale for each row, or `tensor`, one for all.

    Returns:
        float32 `[out, 1]` or `[1, 1]`, above 0. A step that would be 0 is float32's epsilon instead.

    Raises:
        ValueError: another strategy, or a weight that is NaN or infinite; the message says which.
    """
    if strategy not in ("channel", "tensor"):
        raise ValueError(f"strategy must be 'channel' or 'tensor', got {strategy!r}")
    if not np.isfinite(weight).all():
        bad = weight[~np.isfinite(weight)][0]
        raise ValueError(f"weights must be finite, got {bad}: no step reaches that")
    axis = 1 if strategy == "channel" else None
    largest = np.abs(weight).max(axis=axis, keepdims=True)
    scale = largest / np.float32(127.5)
    return np.where(scale > 0, scale, np.finfo(np.float32).eps)


def quantize(weight: Array, scale: Array) -> Codes:
    """The code of each weight: its number of steps, rounded half to even and clipped to -128 to 127.

    Args:
        weight: float32 `[out, in]`.
        scale: float32 `[out, 1]` or `[1, 1]`.

    Returns:
        int8 `[out, in]`.
    """
    steps = np.rint(weight / scale)
    return np.clip(steps, -128, 127).astype(np.int8)


def dequantize(codes: Codes, scale: Array) -> Array:
    """The weights that the codes stand for, float32 `[out, in]`."""
    return codes.astype(np.float32) * scale


def fake_quantize(weight: Array, strategy: str) -> Array:
    """`weight` with the error of rounding and nothing else: quantised, and back, float32 `[out, in]`."""
    scale = choose_scale(weight, strategy)
    return dequantize(quantize(weight, scale), scale)


class Int8LinearMethod(LinearMethod):
    """A linear layer that keeps its weights in int8, with a scale for each row.

    The engine loads float weights, lets this quantise them, and calls `apply` in every step.
    """

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        """What the checkpoint must hold of a projection: a float32 `weight` `[out, in]`. (Given.)"""
        return {"weight": Parameter((output_size, input_size))}

    def process_weights_after_loading(self, layer: Any) -> None:
        """Turn `layer.weight` into `layer.qweight`, int8 `[out, in]`, and `layer.weight_scale`, float32
        `[out, 1]`. Delete the float weight: a layer that keeps it has saved nothing.

        Args:
            layer: `layer.weight` is float32 `[out, in]`, the rows of all its projections.
        """
        layer.weight_scale = choose_scale(layer.weight, "channel")
        layer.qweight = quantize(layer.weight, layer.weight_scale)
        del layer.weight

    def apply(self, layer: Any, x: Array) -> Array:
        """The product with the weights that the codes stand for.

        A row's scale is the same for all its weights. So it can wait: multiply by the codes, then multiply
        the sums by the scale.

        Args:
            x: float32 `[n, in]`.

        Returns:
            float32 `[n, out]`.
        """
        sums = x @ layer.qweight.astype(np.float32).T
        return sums * layer.weight_scale.T


def storage_bytes(layer: Any) -> int:
    """Bytes of the codes and scales that the layer keeps."""
    return int(layer.qweight.nbytes + layer.weight_scale.nbytes)

"""Lab 06-01: int8 weights with a scale, and a linear layer that computes with them. Your work:
every NotImplementedError."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.quantization.base import LinearMethod, Parameter

Array = NDArray[np.float32]
Codes = NDArray[np.int8]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names that stand there."""
    raise NotImplementedError


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
    raise NotImplementedError


def quantize(weight: Array, scale: Array) -> Codes:
    """The code of each weight: its number of steps, rounded half to even and clipped to -128 to 127.

    Args:
        weight: float32 `[out, in]`.
        scale: float32 `[out, 1]` or `[1, 1]`.

    Returns:
        int8 `[out, in]`.
    """
    raise NotImplementedError


def dequantize(codes: Codes, scale: Array) -> Array:
    """The weights that the codes stand for, float32 `[out, in]`."""
    raise NotImplementedError


def fake_quantize(weight: Array, strategy: str) -> Array:
    """`weight` with the error of rounding and nothing else: quantised, and back, float32 `[out, in]`."""
    raise NotImplementedError


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
        raise NotImplementedError

    def apply(self, layer: Any, x: Array) -> Array:
        """The product with the weights that the codes stand for.

        A row's scale is the same for all its weights. So it can wait: multiply by the codes, then multiply
        the sums by the scale.

        Args:
            x: float32 `[n, in]`.

        Returns:
            float32 `[n, out]`.
        """
        raise NotImplementedError


def storage_bytes(layer: Any) -> int:
    """Bytes of the codes and scales that the layer keeps."""
    raise NotImplementedError

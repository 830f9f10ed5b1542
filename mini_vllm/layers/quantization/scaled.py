"""The linear methods of 8-bit weights with one scale a row or a projection, which may take 8-bit activations.

Their product is of codes, and scaled once. The activations' scale is made row by row, when the row is there,
or was measured beforehand and lies in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.checks import CheckpointError
from mini_vllm.layers.quantization.base import Array, LinearMethod, Parameter, require_shared_scale
from mini_vllm.layers.quantization.float_formats import E4M3

Float = NDArray[np.float32]

EXACT = 2**24
"""Whole numbers up to here are float32s, every one."""
SMALLEST_NORMAL = np.finfo(np.float32).tiny
SMALLEST_FP8_SCALE = np.float32(1 / (448 * 512))


@dataclass(frozen=True)
class _ScaledLinearMethod(LinearMethod):
    """8-bit weights whose scale does not change along `in`, so that it can be applied to the product.

    A layer has `weight`, `[out, in]` codes of 8 bits, `weight_scale`, float32 `[out]`, and `input_scale`, a
    float32 where the file has the activations' scale, else None.

    Attributes:
        strategy: `channel`, a scale for each row, or `tensor`, one for each projection.
    """

    strategy: str
    _dtype = "int8"

    @property
    def has_input_scale(self) -> bool:
        """Whether the file has a scale for the activations of each projection."""
        return False

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        scale = Parameter((output_size, 1))
        if self.strategy == "tensor":
            scale = Parameter((1,), output_dim=None)
        weight = Parameter((output_size, input_size), (self._dtype,))
        tensors = {"weight": weight, "weight_scale": scale}
        if self.has_input_scale:
            tensors["input_scale"] = Parameter((1,), output_dim=None)
        return tensors

    def process_weights_after_loading(self, layer: Any) -> None:
        scale = layer.weight_scale.ravel()
        if self.strategy == "tensor":
            scale = np.repeat(scale, layer.output_sizes)
        layer.weight_scale = scale
        if not self.has_input_scale:
            layer.input_scale = None
        elif not (layer.input_scale > 0).all():
            raise CheckpointError(
                f"{layer.names[0]}.input_scale must be above 0, got {layer.input_scale.ravel().tolist()}"
            )


@dataclass(frozen=True)
class W8A8Int8LinearMethod(_ScaledLinearMethod):
    """int8 weights and int8 activations, multiplied as whole numbers: `CompressedTensorsW8A8Int8` in
    `vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_int8.py`.

    Attributes:
        is_static_input_scheme: the activations' scale is in the file; else each row gets its own.
        input_symmetric: the code 0 stands for 0. Else the code that does is where the scale is: in the file,
            and a layer has it as `input_zero_point`, an int; or each row gets its own.
    """

    is_static_input_scheme: bool = False
    input_symmetric: bool = True

    @property
    def has_input_scale(self) -> bool:
        return self.is_static_input_scheme

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        tensors = super().create_weights(input_size, output_size)
        if self.has_input_scale and not self.input_symmetric:
            tensors["input_zero_point"] = Parameter((1,), ("int8",), output_dim=None)
        return tensors

    def process_weights_after_loading(self, layer: Any) -> None:
        """Projections of one product must have one scale. Upstream keeps the one that it reads last."""
        super().process_weights_after_loading(layer)
        zero_point = 0
        if self.has_input_scale:
            layer.input_scale = require_shared_scale(layer, "input_scale")[0]
            if not self.input_symmetric:
                zero_point = int(require_shared_scale(layer, "input_zero_point")[0])
        layer.input_zero_point = zero_point
        # How large a row's own zero point will be is not known.
        known = self.has_input_scale or self.input_symmetric
        layer.largest_input = 128 + abs(zero_point) if known else EXACT

    def quantize(self, layer: Any, x: Float) -> tuple[Array, Any]:
        """Activations as whole numbers, of which 0 stands for 0, and what one of them is worth."""
        if layer.input_scale is None:
            if self.input_symmetric:
                return quantize_per_token_int8(x)
            codes, scale, zero_point = quantize_per_token_asymmetric_int8(x)
            return codes - zero_point, scale
        codes = quantize_int8(x, layer.input_scale, layer.input_zero_point)
        return codes - np.int16(layer.input_zero_point), layer.input_scale

    def apply(self, layer: Any, x: Float) -> Float:
        """Upstream sums in int32. A float holds the same sum as long as no partial sum leaves the whole
        numbers that it has, and a BLAS multiplies floats alone."""
        numbers, scale = self.quantize(layer, x)
        exact = np.float32 if layer.largest_input * 128 * x.shape[1] <= EXACT else np.float64
        sums = numbers.astype(exact) @ layer.weight.astype(exact).T
        y: Float = sums.astype(np.float32) * scale * layer.weight_scale
        return y


@dataclass(frozen=True)
class Fp8LinearMethod(_ScaledLinearMethod):
    """FP8 weights, and FP8 activations where `quantize_activations` says so: `CompressedTensorsW8A8Fp8` in
    `vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_fp8.py`.

    Attributes:
        is_static_input_scheme: the activations' scale is in the file, of projections of one product the
            largest; else each row gets its own.
    """

    quantize_activations: bool = True
    is_static_input_scheme: bool = False
    _dtype = "uint8"

    @property
    def has_input_scale(self) -> bool:
        return self.is_static_input_scheme

    def process_weights_after_loading(self, layer: Any) -> None:
        super().process_weights_after_loading(layer)
        if self.has_input_scale:
            layer.input_scale = layer.input_scale.max()
        # A NaN is a code like any other, so the check of the float tensors has not seen it.
        nan = np.argwhere((layer.weight & 0x7F) == 0x7F)
        if len(nan):
            raise CheckpointError(
                f"the FP8 weight of {', '.join(layer.names)} holds NaN at {nan[0].tolist()}: weights must be "
                "finite"
            )

    def apply(self, layer: Any, x: Float) -> Float:
        scale: Any = np.float32(1)
        if layer.input_scale is not None:
            scale = layer.input_scale
            x = E4M3.decode(E4M3.encode(x * (1 / scale)))
        elif self.quantize_activations:
            codes, scale = quantize_per_token_fp8(x)
            x = E4M3.decode(codes)
        y: Float = x @ np.take(E4M3.values, layer.weight).T * scale * layer.weight_scale
        return y


def quantize_int8(x: Float, scale: np.float32, zero_point: int = 0) -> NDArray[np.int8]:
    """int8 codes `[n, in]` of activations by a scale that was fixed beforehand; what is beyond is cut off."""
    codes: NDArray[np.int8] = np.rint(x * (1 / scale) + zero_point).clip(-128, 127).astype(np.int8)
    return codes


def quantize_per_token_int8(x: Float) -> tuple[NDArray[np.int8], Float]:
    """int8 codes `[n, in]` and scales `[n, 1]` of activations: the largest of a row becomes 127 or -127.

    By 127, where compressed-tensors divides weights by 127.5
    (`vllm/_custom_ops.py:2059 scaled_int8_quant`, whose kernel is C++).
    """
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    # Below the smallest normal number 1 / scale is infinite, and infinity times a 0 of that row is NaN.
    inverse = 1 / np.maximum(scale, SMALLEST_NORMAL)
    return np.rint(x * inverse).clip(-128, 127).astype(np.int8), scale


def quantize_per_token_asymmetric_int8(
    x: Float,
) -> tuple[NDArray[np.int8], Float, NDArray[np.float64]]:
    """int8 codes `[n, in]`, scales and zero points `[n, 1]`: a row's smallest number becomes -128, its
    largest 127 (`vllm/_custom_ops.py:3476 onednn_scaled_int8_quant`, whose kernel is C++).

    A row of one number, which upstream loses, is coded from 0 to that number.
    """
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    one = low == high
    low, high = np.where(one, np.minimum(low, 0), low), np.where(one, np.maximum(high, 0), high)
    scale = np.maximum((high - low) / np.float32(255), SMALLEST_NORMAL)
    zero_point = np.rint(-128 - low / scale)
    codes = np.rint(x * (1 / scale) + zero_point).clip(-128, 127).astype(np.int8)
    return codes, scale, zero_point.astype(np.float64)


def quantize_per_token_fp8(x: Float) -> tuple[NDArray[np.uint8], Float]:
    """E4M3 bytes `[n, in]` and scales `[n, 1]` of activations: the largest of a row becomes 448 or -448.

    A row of tiny numbers keeps a scale that float32 can divide by
    (`vllm/model_executor/layers/quantization/input_quant_fp8.py:188 QuantFP8.forward_native`).
    """
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(E4M3.max)
    scale = np.maximum(scale, SMALLEST_FP8_SCALE)
    return E4M3.encode(x * (1 / scale)), scale

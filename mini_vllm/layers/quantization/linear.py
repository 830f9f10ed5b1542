"""The linear methods: how a layer's weights lie in memory, and its product from them.

Mirrors `vllm/model_executor/layers/quantization/`: `UnquantizedLinearMethod`, the methods of AWQ and
GPTQ, and the schemes of compressed-tensors, which upstream reaches through one method more.

What is quantised stays small in memory, as it is in the file. The arithmetic is float32, so a product
first makes a float32 matrix of all weights, uses it once and drops it. A GPU's kernel does that tile by
tile, in registers; here it is the reason why a quantised model is slower than the one that it came from.

Shapes below: a projection is `[out, in]`; codes of `bits` bits lie `32 / bits` to a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.model import CheckpointError
from mini_vllm.layers.quantization.base import Array, LinearMethod, Parameter, the_same_for_all
from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.grid import check_group_size
from mini_vllm.layers.quantization.pack import pack_int32, unpack_awq, unpack_int32
from mini_vllm.utils.blas import has_small_matrix_kernels
from mini_vllm.utils.threads import in_pieces

Float = NDArray[np.float32]

EXACT = 2**24
"""Whole numbers up to here are float32s, every one."""
SMALLEST_NORMAL = np.finfo(np.float32).tiny
SMALLEST_FP8_SCALE = np.float32(1 / (448 * 512))


def turn(weight: Float) -> Float:
    """`np.ascontiguousarray(weight.T)`, some rows at a time, so that what is written to stays in the caches:
    151,936 by 1,024 took 0.7 s instead of 3.9."""
    turned = np.empty(weight.shape[::-1], weight.dtype)
    for row in range(0, len(weight), 64):
        turned[:, row : row + 64] = weight[row : row + 64].T
    return turned


@dataclass(frozen=True)
class UnquantizedLinearMethod(LinearMethod):
    """The weights as they are (`vllm/model_executor/layers/linear.py:182 UnquantizedLinearMethod`).

    `layer.weight` is `[out, in]`, as in the file. In which order it lies in memory depends on the BLAS: with
    few rows a product spends most of its time on the weights, because OpenBLAS copies them into another
    order first. Its AVX2 kernels copy faster from `[in, out]`, so there the weights are turned once (576 by
    3,072, 4 rows, an AMD EPYC: 1.06 against 1.58 ms); its AVX-512 kernels multiply a matrix from the left
    without a copy (576 by 1,536, 4 rows, an Intel Xeon: 0.63 against 1.39 ms).
    """

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        return {"weight": Parameter((output_size, input_size))}

    def process_weights_after_loading(self, layer: Any) -> None:
        if not has_small_matrix_kernels():
            layer.weight = turn(layer.weight).T

    def apply(self, layer: Any, x: Float) -> Float:
        """`x @ weight.T`, in pieces of columns where that pays (`utils/threads.py`)."""
        weight, rows = layer.weight, len(x)
        # One row is a matrix and a vector, which need no copy in either order.
        turned = rows > 1 and weight.flags.c_contiguous
        y: Float = np.empty((len(weight), rows) if turned else (rows, len(weight)), np.float32)

        def compute(start: int, stop: int) -> None:
            if turned:
                np.matmul(weight[start:stop], x.T, out=y[start:stop])
            else:
                np.matmul(x, weight[start:stop].T, out=y[:, start:stop])

        in_pieces(compute, len(weight), weight.size, rows)
        return np.ascontiguousarray(y.T) if turned else y


@dataclass(frozen=True)
class WNA16LinearMethod(LinearMethod):
    """Weights of 4 or 8 bits in words, activations as they are: `CompressedTensorsWNA16` in
    `vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py`.

    AWQ and GPTQ files are brought into this form when they are loaded. From then on a layer has

    - `weight_packed`: int32 `[out, words]`, unsigned codes along `in`, the first in the lowest bits;
    - `weight_scale`: float32 `[out, groups]`;
    - `weight_zero_point`: uint8 `[out, groups]`, the code that stands for 0; None: 2^(bits - 1) everywhere;
    - `perm`: int64 `[in]`, the input that each column belongs to, where groups are no neighbours; or None.

    Attributes:
        num_bits: 4 or 8.
        group_size: weights along `in` that share a scale; -1: all of a row.
        symmetric: without zero points.
        has_g_idx: the file says the group of each column.
    """

    num_bits: int
    group_size: int
    symmetric: bool = True
    has_g_idx: bool = False

    def groups(self, input_size: int) -> int:
        """How many groups a row has. Raises ValueError where they do not divide it."""
        size = input_size if self.group_size == -1 else self.group_size
        check_group_size(input_size, size)
        return input_size // size

    def words(self, size: int, what: str) -> int:
        """How many words hold so many codes. Raises ValueError where the last would not be full."""
        factor = 32 // self.num_bits
        if size % factor:
            raise ValueError(
                f"{what} {size} must be a multiple of {factor}, the codes of {self.num_bits} bits in a word"
            )
        return size // factor

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        groups = self.groups(input_size)
        tensors = {
            "weight_packed": Parameter(
                (output_size, self.words(input_size, "input size")), ("int32",)
            ),
            "weight_scale": Parameter((output_size, groups)),
            "weight_shape": Parameter((2,), ("int64", "int32"), output_dim=None),
        }
        if not self.symmetric:
            words = self.words(output_size, "output size")
            tensors["weight_zero_point"] = Parameter((words, groups), ("int32",))
        if self.has_g_idx:
            tensors["weight_g_idx"] = Parameter((input_size,), ("int32",), output_dim=None)
        return tensors

    def process_weights_after_loading(self, layer: Any) -> None:
        sizes = zip(layer.names, layer.output_sizes, layer.weight_shape.tolist(), strict=True)
        for name, output_size, told in sizes:
            if told != [output_size, layer.input_size]:
                raise CheckpointError(
                    f"{name}.weight_shape is {told}, config.json makes it "
                    f"{[output_size, layer.input_size]}"
                )
        del layer.weight_shape
        zero_point = None
        if not self.symmetric:
            codes = unpack_int32(layer.weight_zero_point, self.num_bits, 0, sum(layer.output_sizes))
            zero_point = codes.astype(np.uint8)
        layer.weight_zero_point = zero_point
        g_idx = the_same_for_all(layer, "weight_g_idx") if self.has_g_idx else None
        self.put_in_order(layer, f"{layer.names[0]}.weight_g_idx", g_idx)

    def put_in_order(self, layer: Any, name: str, g_idx: Array | None) -> None:
        """Sort the columns by group, so that a group is a stretch again, and keep the order for `apply`.

        That is how act-order reaches a kernel upstream, too: weights sorted once, activations gathered in
        every step (`vllm/model_executor/layers/quantization/utils/marlin_utils.py:291 marlin_sort_g_idx`).
        """
        layer.perm = None
        if g_idx is None:
            return
        groups = self.groups(layer.input_size)
        size = layer.input_size // groups
        counts = np.bincount(np.clip(g_idx, -1, groups) + 1, minlength=groups + 2)
        if counts.tolist() != [0, *[size] * groups, 0]:
            raise CheckpointError(
                f"{name} must name each group from 0 to {groups - 1} for {size} columns; it goes "
                f"from {g_idx.min()} to {g_idx.max()}, with {counts[1:-1].tolist()} columns a group"
            )
        perm = np.argsort(g_idx, kind="stable")
        if (np.diff(perm) == 1).all():
            return
        codes = unpack_int32(layer.weight_packed, self.num_bits, 1, layer.input_size)
        layer.weight_packed = pack_int32(codes[:, perm], self.num_bits, axis=1)
        layer.perm = perm

    def apply(self, layer: Any, x: Float) -> Float:
        if layer.perm is not None:
            x = x[:, layer.perm]
        return x @ self.dequantize(layer).T

    def dequantize(self, layer: Any) -> Float:
        """All weights of the layer, float32 `[out, in]`, columns in the order of the groups."""
        numbers = unpack_numbers(layer.weight_packed, self.num_bits)
        out, groups = layer.weight_scale.shape
        grouped = numbers.reshape(out, groups, -1)
        if layer.weight_zero_point is None:
            grouped -= np.float32(2 ** (self.num_bits - 1))
        else:
            grouped -= layer.weight_zero_point[:, :, None]
        grouped *= layer.weight_scale[:, :, None]
        return grouped.reshape(out, -1)


# The two numbers that the halves of a byte stand for, the lower first, as one item of 8 bytes: numpy takes
# such items six times faster than it shifts and masks (98,304 codes: 0.16 ms against 1.05 ms).
_PAIRS = np.stack([np.arange(256) & 15, np.arange(256) >> 4], axis=1).astype(np.float32)
_PAIRS_AS_ITEMS = _PAIRS.view(np.float64).ravel()


def unpack_numbers(packed: Array, bits: int) -> Float:
    """`unpack_int32` for 4 or 8 bits along the last axis, into float32: `[out, words]` to `[out, in]`."""
    in_bytes = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    if bits == 8:
        return in_bytes.astype(np.float32)
    return np.take(_PAIRS_AS_ITEMS, in_bytes).view(np.float32)


@dataclass(frozen=True)
class AWQLinearMethod(WNA16LinearMethod):
    """A file of AutoAWQ's: 4 bits, always with zero points, transposed
    (`vllm/model_executor/layers/quantization/awq.py:172 AWQLinearMethod`)."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        words, groups = self.words(output_size, "output size"), self.groups(input_size)
        self.words(input_size, "input size")
        return {
            "qweight": Parameter((input_size, words), ("int32",), output_dim=1),
            "qzeros": Parameter((groups, words), ("int32",), output_dim=1),
            "scales": Parameter((groups, output_size), output_dim=1),
        }

    def process_weights_after_loading(self, layer: Any) -> None:
        codes = unpack_awq(layer.qweight).T
        layer.weight_packed = pack_int32(codes, self.num_bits, axis=1)
        layer.weight_scale = np.ascontiguousarray(layer.scales.T)
        layer.weight_zero_point = np.ascontiguousarray(unpack_awq(layer.qzeros).T.astype(np.uint8))
        layer.perm = None
        del layer.qweight, layer.scales, layer.qzeros


@dataclass(frozen=True)
class GPTQLinearMethod(WNA16LinearMethod):
    """A file of AutoGPTQ's: 4 or 8 bits, symmetric, transposed
    (`vllm/model_executor/layers/quantization/auto_gptq.py:302 AutoGPTQLinearMethod`).

    `has_g_idx` is `desc_act`. The zero points of a symmetric file are all the middle code, and upstream
    does not look at them. A file with others would be computed wrongly, so here they are checked.
    """

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        groups = self.groups(input_size)
        in_words = self.words(input_size, "input size")
        out_words = self.words(output_size, "output size")
        return {
            "qweight": Parameter((in_words, output_size), ("int32",), output_dim=1),
            "qzeros": Parameter((groups, out_words), ("int32",), output_dim=1),
            "scales": Parameter((groups, output_size), output_dim=1),
            "g_idx": Parameter((input_size,), ("int32",), None, optional=not self.has_g_idx),
        }

    def process_weights_after_loading(self, layer: Any) -> None:
        zeros = unpack_numbers(layer.qzeros, self.num_bits)
        middle = 2 ** (self.num_bits - 1)
        # The first format stored them one lower; `gptq_v2` stores them as they are.
        if not ((zeros == middle - 1).all() or (zeros == middle).all()):
            raise CheckpointError(
                f"{layer.names[0]}.qzeros holds {int(zeros.min())} to {int(zeros.max())}: a symmetric GPTQ "
                f"file has {middle - 1} everywhere, or {middle} (gptq_v2)"
            )
        layer.weight_packed = np.ascontiguousarray(layer.qweight.T)
        layer.weight_scale = np.ascontiguousarray(layer.scales.T)
        layer.weight_zero_point = None
        g_idx = None if layer.g_idx is None else the_same_for_all(layer, "g_idx")
        if not self.has_g_idx and g_idx is not None and (np.diff(g_idx) < 0).any():
            raise CheckpointError(
                f"{layer.names[0]}.g_idx is not in order, and quantization_config says desc_act false"
            )
        self.put_in_order(layer, f"{layer.names[0]}.g_idx", g_idx if self.has_g_idx else None)
        del layer.qweight, layer.scales, layer.qzeros, layer.g_idx


@dataclass(frozen=True)
class _ScaledLinearMethod(LinearMethod):
    """8-bit weights whose scale does not change along `in`, so that it can be applied to the product.

    A layer has `weight`, `[out, in]` codes of 8 bits, and `weight_scale`, float32 `[out]`.

    Attributes:
        strategy: `channel`, a scale for each row, or `tensor`, one for each projection.
    """

    strategy: str
    _dtype = "int8"

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        scale = Parameter((output_size, 1))
        if self.strategy == "tensor":
            scale = Parameter((1,), output_dim=None)
        weight = Parameter((output_size, input_size), (self._dtype,))
        return {"weight": weight, "weight_scale": scale}

    def process_weights_after_loading(self, layer: Any) -> None:
        scale = layer.weight_scale.ravel()
        if self.strategy == "tensor":
            scale = np.repeat(scale, layer.output_sizes)
        layer.weight_scale = scale


@dataclass(frozen=True)
class W8A8Int8LinearMethod(_ScaledLinearMethod):
    """int8 weights and int8 activations, multiplied as whole numbers: `CompressedTensorsW8A8Int8` in
    `vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_int8.py`.
    """

    def apply(self, layer: Any, x: Float) -> Float:
        """Upstream sums in int32. A float holds the same sum as long as no partial sum leaves the whole
        numbers that it has, and a BLAS multiplies floats alone."""
        codes, scale = quantize_per_token_int8(x)
        exact = np.float32 if 128 * 128 * x.shape[1] <= EXACT else np.float64
        sums = codes.astype(exact) @ layer.weight.astype(exact).T
        y: Float = sums.astype(np.float32) * scale * layer.weight_scale
        return y


@dataclass(frozen=True)
class Fp8LinearMethod(_ScaledLinearMethod):
    """FP8 weights, and FP8 activations where `quantize_activations` says so: `CompressedTensorsW8A8Fp8` in
    `vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_fp8.py`.
    """

    quantize_activations: bool = True
    _dtype = "uint8"

    def process_weights_after_loading(self, layer: Any) -> None:
        super().process_weights_after_loading(layer)
        # A NaN is a code like any other, so the check of the float tensors has not seen it.
        nan = np.argwhere((layer.weight & 0x7F) == 0x7F)
        if len(nan):
            raise CheckpointError(
                f"the FP8 weight of {', '.join(layer.names)} holds NaN at {nan[0].tolist()}: weights must be "
                "finite"
            )

    def apply(self, layer: Any, x: Float) -> Float:
        scale = np.ones((1, 1), np.float32)
        if self.quantize_activations:
            codes, scale = quantize_per_token_fp8(x)
            x = E4M3.decode(codes)
        y: Float = x @ np.take(E4M3.values, layer.weight).T * scale * layer.weight_scale
        return y


def quantize_per_token_int8(x: Float) -> tuple[NDArray[np.int8], Float]:
    """int8 codes `[n, in]` and scales `[n, 1]` of activations: the largest of a row becomes 127 or -127.

    By 127, where compressed-tensors divides weights by 127.5
    (`vllm/_custom_ops.py:2059 scaled_int8_quant`, whose kernel is C++).
    """
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    # Below the smallest normal number 1 / scale is infinite, and infinity times a 0 of that row is NaN.
    inverse = 1 / np.maximum(scale, SMALLEST_NORMAL)
    return np.rint(x * inverse).clip(-128, 127).astype(np.int8), scale


def quantize_per_token_fp8(x: Float) -> tuple[NDArray[np.uint8], Float]:
    """E4M3 bytes `[n, in]` and scales `[n, 1]` of activations: the largest of a row becomes 448 or -448.

    A row of tiny numbers keeps a scale that float32 can divide by
    (`vllm/model_executor/layers/quantization/input_quant_fp8.py:188 QuantFP8.forward_native`).
    """
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(E4M3.max)
    scale = np.maximum(scale, SMALLEST_FP8_SCALE)
    return E4M3.encode(x * (1 / scale)), scale

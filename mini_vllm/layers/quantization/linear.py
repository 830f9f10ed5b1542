"""The linear methods of quantised weights: how they lie in memory, and a layer's product from them.

Mirrors `vllm/model_executor/layers/quantization/`: the methods of AWQ and GPTQ, and the schemes of
compressed-tensors, which upstream reaches through one method more. Those that quantise activations as
well are in `scaled.py`.

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

from mini_vllm.config.checks import CheckpointError
from mini_vllm.layers.quantization.base import Array, LinearMethod, Parameter, require_shared_scale
from mini_vllm.layers.quantization.grid import check_group_size
from mini_vllm.layers.quantization.pack import pack_int32, unpack_awq, unpack_int32

Float = NDArray[np.float32]


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
        g_idx = require_shared_scale(layer, "weight_g_idx") if self.has_g_idx else None
        self.apply_act_order(layer, f"{layer.names[0]}.weight_g_idx", g_idx)

    def apply_act_order(self, layer: Any, name: str, g_idx: Array | None) -> None:
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
    """`unpack_int32` for 4 or 8 bits along the last axis, into float32: `[out, words]` to `[out, in]`
    (`vllm/model_executor/layers/quantization/utils/quant_utils.py:443 unpack_quantized_values_into_int32`).
    """
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
        g_idx = None if layer.g_idx is None else require_shared_scale(layer, "g_idx")
        if not self.has_g_idx and g_idx is not None and (np.diff(g_idx) < 0).any():
            raise CheckpointError(
                f"{layer.names[0]}.g_idx is not in order, and quantization_config says desc_act false"
            )
        self.apply_act_order(layer, f"{layer.names[0]}.g_idx", g_idx if self.has_g_idx else None)
        del layer.qweight, layer.scales, layer.qzeros, layer.g_idx

"""Lab 06-02: what a model card costs, 4-bit groups, and the words of three file formats. One solution.

Codes are unsigned here, 0 to 15, and a code stands for `(code - zero_point) * scale`. On a symmetric grid
the zero point is 8 everywhere. A weight is [out, in], a group lies along a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the four questions of the README, under the names that stand there."""
    linears, others = 6_979_321_856, 262_410_240
    layers = linears * (4 + 16 / 64) / 8
    return {
        "gigabytes of the card": [layers / 1e9, (layers + others * 2) / 1e9],
        "bits a weight": [4 + 16 / 40, 4 + 16 / 160, 4 + 16 / 256, 4 + (16 + 4) / 64],
        "words of 0 to 7": [0x76543210, 0x75316420],
        "GPUs that share 11,008 inputs": [1, 1, 0, 0],
    }


# ---- what it costs -------------------------------------------------------------------------------


def layer_bytes(
    layout: str, out_features: int, in_features: int, group_size: int, symmetric: bool = True
) -> dict[str, int]:
    """Bytes of each tensor that the layout keeps of one 4-bit layer, by name.

    Args:
        layout: "pack-quantized", "gptq" or "awq"; the README's table says which tensors each has, in
            which shape and dtype.
        out_features, in_features: of the layer; both fill whole words.
        group_size: weights of a row that share a scale; -1 is the whole row.
        symmetric: True for gptq, False for awq; for pack-quantized either.
    """
    groups = 1 if group_size == -1 else in_features // group_size
    codes = out_features * in_features // 2
    scales = 2 * out_features * groups
    zeros = out_features * groups // 2
    if layout == "pack-quantized":
        sizes = {"weight_packed": codes, "weight_scale": scales, "weight_shape": 16}
        return sizes if symmetric else sizes | {"weight_zero_point": zeros}
    sizes = {"qweight": codes, "scales": scales, "qzeros": zeros}
    return sizes | {"g_idx": 4 * in_features} if layout == "gptq" else sizes


def card_bytes(
    linears: Iterable[tuple[int, int]], others: int, group_size: int, symmetric: bool = True
) -> int:
    """Bytes of a checkpoint whose card says W4A16, in the layout pack-quantized."""
    layers = sum(
        sum(layer_bytes("pack-quantized", out, inp, group_size, symmetric).values())
        for out, inp in linears
    )
    return layers + 2 * others


# ---- groups --------------------------------------------------------------------------------------


def quantize_groups(
    weight: Array, group_size: int, symmetric: bool = True
) -> tuple[Array, Array, Array]:
    """Round a weight to 4 bits, a scale for each group."""
    rows, columns = weight.shape
    size = columns if group_size == -1 else group_size
    groups = weight.astype(np.float32).reshape(rows, columns // size, size)
    low = np.minimum(groups.min(axis=2), 0)
    high = np.maximum(groups.max(axis=2), 0)
    if symmetric:
        exact = np.maximum(-low, high) / np.float32(7.5)
    else:
        exact = (high - low) / np.float32(15)
    scale = exact.astype(np.float16).astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    zero_point = np.full(scale.shape, 8)
    if not symmetric:
        steps = np.divide(-low, exact, out=np.zeros_like(low), where=exact > 0)
        zero_point = np.rint(steps).astype(np.int64)
    steps = groups / scale[:, :, None] + zero_point[:, :, None]
    codes = np.rint(np.clip(steps, 0, 15)).reshape(rows, columns)
    return codes.astype(np.int32), scale, zero_point.astype(np.int32)


def dequantize_groups(codes: Array, scale: Array, zero_point: Array) -> Array:
    """The weights that the codes stand for, float32 [out, in]; all as `quantize_groups` has them."""
    size = codes.shape[1] // scale.shape[1]
    wide_scale, wide_zero = (np.repeat(part, size, axis=1) for part in (scale, zero_point))
    numbers: Array = ((codes - wide_zero) * wide_scale).astype(np.float32)
    return numbers


def weight_error(weight: Array, group_size: int, symmetric: bool = True) -> float:
    """How far 4 bits move a weight, as a share of its size: |W' - W| / |W|, roots of sums of squares."""
    rounded = dequantize_groups(*quantize_groups(weight, group_size, symmetric))
    return float(np.linalg.norm(rounded - weight) / np.linalg.norm(weight))


# ---- words ---------------------------------------------------------------------------------------


def pack(codes: Array, axis: int) -> Array:
    """Eight codes to a word along `axis`, the first in the lowest four bits."""
    moved = np.moveaxis(codes, axis, -1).astype(np.uint32)
    words = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), np.uint32)
    for i in range(8):
        words |= moved[..., i::8] << np.uint32(4 * i)
    return np.moveaxis(words.view(np.int32), -1, axis)


def unpack(words: Array, axis: int) -> Array:
    """The codes that `pack` was given."""
    moved = np.moveaxis(words, axis, -1)
    codes = np.empty((*moved.shape[:-1], moved.shape[-1] * 8), np.int32)
    for i in range(8):
        codes[..., i::8] = (moved >> (4 * i)) & 15
    return np.moveaxis(codes, -1, axis)


def pack_awq(codes: Array) -> Array:
    """Eight neighbours along the last axis to a word, in AWQ's order."""
    eights = codes.reshape(codes.shape[0], -1, 8)
    return pack(eights[:, :, list(AWQ_ORDER)].reshape(codes.shape), axis=1)


def unpack_awq(words: Array) -> Array:
    """The codes that `pack_awq` was given, int32."""
    nibbles = unpack(words, axis=1).reshape(words.shape[0], -1, 8)
    codes = np.empty_like(nibbles)
    codes[:, :, list(AWQ_ORDER)] = nibbles
    return codes.reshape(words.shape[0], -1)


# ---- files ---------------------------------------------------------------------------------------


def write_layer(
    layout: str, codes: Array, scale: Array, zero_point: Array, symmetric: bool = True
) -> dict[str, Array]:
    """The tensors of one layer as the layout has them."""
    rows, columns = codes.shape
    half = scale.astype(np.float16)
    if layout == "pack-quantized":
        tensors = {
            "weight_packed": pack(codes, axis=1),
            "weight_scale": half,
            "weight_shape": np.array([rows, columns], np.int64),
        }
        return tensors if symmetric else tensors | {"weight_zero_point": pack(zero_point, axis=0)}
    if layout == "gptq":
        group_size = columns // scale.shape[1]
        return {
            "qweight": pack(codes.T, axis=0),
            "scales": half.T,
            "qzeros": pack(zero_point.T - 1, axis=1),
            "g_idx": (np.arange(columns) // group_size).astype(np.int32),
        }
    return {
        "qweight": pack_awq(codes.T),
        "scales": half.T,
        "qzeros": pack_awq(zero_point.T),
    }


def read_layer(layout: str, tensors: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Codes, scale and zero point, as `quantize_groups` returns them, from the tensors of one layer.

    Columns are in the order of their groups, so `g_idx` need not be looked at.
    """
    if layout == "pack-quantized":
        codes = unpack(tensors["weight_packed"], axis=1)
        scale = tensors["weight_scale"].astype(np.float32)
        if "weight_zero_point" in tensors:
            return codes, scale, unpack(tensors["weight_zero_point"], axis=0)
        return codes, scale, np.full(scale.shape, 8, np.int32)
    scale = tensors["scales"].T.astype(np.float32)
    if layout == "gptq":
        codes = unpack(tensors["qweight"], axis=0).T
        return codes, scale, unpack(tensors["qzeros"], axis=1).T + 1
    return unpack_awq(tensors["qweight"]).T, scale, unpack_awq(tensors["qzeros"]).T


# ---- who runs it ---------------------------------------------------------------------------------

RULES = {
    "marlin": ((-1, 32, 64, 128), 128, 64),
    "machete": ((-1, 64, 128), 64, 128),
    "cpu": (None, 32, 32),
}


def refused_by(kernel: str, out_features: int, in_features: int, group_size: int) -> list[str]:
    """What in the layer breaks a rule of the kernel: any of "group_size", "in_features", "out_features".

    They come in this order; the list is empty if the kernel takes the layer. A group that does not divide the
    inputs is refused as "group_size", whatever the kernel.

    Args:
        kernel: "marlin", "machete" or "cpu"; the README's table has the rules.
        out_features, in_features: of the layer as it runs: on one of several GPUs, that GPU's part.
        group_size: -1 is the whole row.
    """
    sizes, inputs, outputs = RULES[kernel]
    group_ok = group_size == -1 or in_features % group_size == 0
    group_ok &= group_size in sizes if sizes else group_size == -1 or group_size % 2 == 0
    checks = {
        "group_size": group_ok,
        "in_features": in_features % inputs == 0,
        "out_features": out_features % outputs == 0,
    }
    return [name for name, holds in checks.items() if not holds]

"""Codes of 4 or 8 bits in words of 32: how the files of three formats hold a weight.

Mirrors `pack_to_int32` of compressed-tensors
(`compressed_tensors/compressors/pack_quantized/helpers.py`) and vLLM's repacking of AWQ
(`vllm/model_executor/layers/quantization/awq_marlin.py:74 _REVERSE_AWQ_PACK_ORDER`).

Which axis is packed differs. For a weight of `out` rows and `in` columns, in 4 bits:

- pack-quantized: `weight_packed` [out, in / 8], along the inputs;
- GPTQ: `qweight` [in / 8, out], transposed and along the inputs;
- AWQ: `qweight` [in, out / 8], transposed and along the outputs, in an order of its own.

Codes are unsigned here, because a word has no room for eight signs: a symmetric code is stored with
2^(bits - 1) added to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.utils.untrusted import shorten_repr

Array = NDArray[Any]
IntArray = NDArray[np.int32]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of eight, that nibble 0, 1, ... 7 of an AWQ word holds."""


def _pack_factor(bits: int) -> int:
    if bits not in (1, 2, 4, 8, 16):
        raise ValueError(
            f"bits must be 1, 2, 4, 8 or 16 to fill a word of 32, got {shorten_repr(bits)}"
        )
    return 32 // bits


def pack_int32(values: Array, bits: int, axis: int) -> IntArray:
    """Codes into words of 32 bits along `axis`, the first one in the lowest bits.

    Args:
        values: whole numbers 0 to 2^bits - 1, of any shape.
        bits: 1, 2, 4, 8 or 16 bits a code.
        axis: which axis shrinks by 32 / bits. If its length is no multiple, zeros fill the last word.

    Returns:
        int32, shaped as `values` but for `axis`. The bits are what counts; the sign is an accident.

    Raises:
        ValueError: a value does not fit its bits, `bits` does not divide 32, or no such axis.
    """
    factor = _pack_factor(bits)
    moved = _last(values, axis)
    if not np.issubdtype(moved.dtype, np.integer):
        raise ValueError(f"codes to pack must be whole numbers, got dtype {moved.dtype}")
    if moved.size and not 0 <= int(moved.min()) <= int(moved.max()) < 2**bits:
        raise ValueError(
            f"codes of {bits} bits must be 0 to {2**bits - 1}, got {int(moved.min())} to "
            f"{int(moved.max())}"
        )
    length = moved.shape[-1]
    words = -(-length // factor)
    filled = np.zeros((*moved.shape[:-1], words * factor), np.uint32)
    filled[..., :length] = moved
    packed = np.zeros((*moved.shape[:-1], words), np.uint32)
    for i in range(factor):
        packed |= filled[..., i::factor] << np.uint32(bits * i)
    return np.ascontiguousarray(np.moveaxis(packed.view(np.int32), -1, axis))


def unpack_int32(packed: Array, bits: int, axis: int, length: int) -> IntArray:
    """Undo `pack_int32`.

    Args:
        packed: int32 words.
        bits, axis: as they were packed.
        length: of `axis` before packing; what filled the last word is dropped.

    Returns:
        int32 codes, 0 to 2^bits - 1.

    Raises:
        ValueError: not int32, or so many words do not come from `length` codes.
    """
    factor = _pack_factor(bits)
    moved = _last(packed, axis)
    if moved.dtype != np.int32:
        raise ValueError(f"packed words must be int32, got dtype {moved.dtype}")
    words = -(-length // factor)
    if length < 0 or moved.shape[-1] != words:
        raise ValueError(
            f"{shorten_repr(length)} codes of {bits} bits take {words} words along axis {axis}, got "
            f"{moved.shape[-1]} in shape {packed.shape}"
        )
    unsigned = np.ascontiguousarray(moved).view(np.uint32)
    codes = np.empty((*moved.shape[:-1], words * factor), np.int32)
    for i in range(factor):
        codes[..., i::factor] = (unsigned >> np.uint32(bits * i)) & np.uint32(2**bits - 1)
    return np.ascontiguousarray(np.moveaxis(codes[..., :length], -1, axis))


def _last(values: Array, axis: int) -> Array:
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"axis {axis} is not one of the {values.ndim} axes of {values.shape}")
    return np.moveaxis(values, axis, -1)


def pack_awq(values: Array) -> IntArray:
    """4-bit codes into words along the last axis, in AWQ's order.

    The order is made for a kernel that unpacks two nibbles 16 bits apart at once: columns 0 and 1
    stand in bits 0 and 16.

    Args:
        values: [rows, columns], whole numbers 0 to 15; `columns` a multiple of 8.

    Returns:
        [rows, columns / 8] int32.

    Raises:
        ValueError: `columns` is no multiple of 8, or see `pack_int32`.
    """
    if values.ndim != 2 or values.shape[1] % 8 != 0:
        raise ValueError(
            f"AWQ packs [rows, columns] with columns a multiple of 8, got shape {values.shape}"
        )
    by_word = values.reshape(values.shape[0], values.shape[1] // 8, 8)[:, :, list(AWQ_ORDER)]
    return pack_int32(by_word.reshape(values.shape), 4, axis=1)


def unpack_awq(packed: Array) -> IntArray:
    """Undo `pack_awq`: [rows, words] int32 to [rows, 8 * words] int32 codes
    (`vllm/model_executor/layers/quantization/awq_marlin.py:74 _REVERSE_AWQ_PACK_ORDER`)."""
    if packed.ndim != 2:
        raise ValueError(f"AWQ words must be [rows, words], got shape {packed.shape}")
    rows, words = packed.shape
    nibbles = unpack_int32(packed, 4, axis=1, length=8 * words).reshape(rows, words, 8)
    codes = np.empty_like(nibbles)
    codes[:, :, list(AWQ_ORDER)] = nibbles
    return codes.reshape(rows, 8 * words)

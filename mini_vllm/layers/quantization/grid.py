"""A grid of few numbers laid over a weight: scale, zero point, code, and back.

Mirrors `compressed_tensors.quantization`, which vLLM reads its configs with: `QuantizationArgs`,
`calculate_qparams` (`quantization/utils/helpers.py`) and `quantize`/`dequantize`
(`quantization/lifecycle/forward.py`); a test holds scales, zero points and codes equal, bit for bit.
Left out: blocks of rows and columns, FP4, scales that have a scale themselves.

A weight is [out, in], one row for each output. A scale belongs to a stretch of a row, the group, and
stands in an array [out, groups]; where all rows share one, it is [1, 1].

One convention differs: asymmetric codes and zero points are unsigned here, 0 to 2^bits - 1, as they
stand in the files. compressed-tensors has them 2^(bits-1) lower until it packs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.utils.untrusted import shorten_repr

Array = NDArray[Any]
FloatArray = NDArray[np.float32]
Codes = NDArray[np.int32]

STRATEGIES = ("tensor", "channel", "group", "token")
SCALE_DTYPES = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
"""Each dtype's step just above 1, which is also the scale of a group of zeros."""
LARGEST = {"float16": 65504.0, "bfloat16": 255 * 2.0**120, "float32": float(np.finfo("f4").max)}
"""Each dtype's largest number."""


@dataclass(frozen=True)
class QuantArgs:
    """What one tensor is stored as; the fields are those of compressed-tensors' `QuantizationArgs`.

    Raises ValueError for a combination that has no meaning, naming the value and the rule.
    """

    num_bits: int
    """Bits of a code, 2 to 8; 8 for type "float"."""
    type: Literal["int", "float"] = "int"
    """With "float" the codes are the bytes of FP8 E4M3."""
    symmetric: bool = True
    """Without a zero point: code 0 is the number 0."""
    strategy: Literal["tensor", "channel", "group", "token"] = "tensor"
    """What shares a scale: all of it, a row, a stretch of a row, or a row of activations."""
    group_size: int | None = None
    """Weights in a group, along a row; only for strategy "group"."""
    dynamic: bool = False
    """The scales are found anew for each input (activations), so no file holds them."""
    scale_dtype: Literal["float16", "bfloat16", "float32"] | None = None
    """The dtype that a scale is stored in; None leaves it in float32."""

    def __post_init__(self) -> None:
        _check_int("num_bits", self.num_bits)
        if self.type not in ("int", "float"):
            raise ValueError(f"type must be 'int' or 'float', got {shorten_repr(self.type)}")
        if self.type == "int" and not 2 <= self.num_bits <= 8:
            raise ValueError(f"num_bits must be 2 to 8 for type 'int', got {self.num_bits}")
        if self.type == "float" and self.num_bits != 8:
            raise ValueError(f"num_bits must be 8 for type 'float', got {self.num_bits}")
        if self.type == "float" and not self.symmetric:
            raise ValueError("type 'float' has no zero point: symmetric must be True, got False")
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy must be one of {', '.join(STRATEGIES)}, got {shorten_repr(self.strategy)}"
            )
        if self.strategy == "token" and not self.dynamic:
            raise ValueError("strategy 'token' is for activations: dynamic must be True, got False")
        if self.strategy == "group":
            _check_int("group_size", self.group_size)
            if self.group_size is None or self.group_size < 1:
                raise ValueError(f"group_size must be at least 1, got {self.group_size}")
        elif self.group_size is not None:
            raise ValueError(
                f"group_size {shorten_repr(self.group_size)} needs strategy 'group', got {self.strategy!r}"
            )
        if self.scale_dtype not in (None, *SCALE_DTYPES):
            raise ValueError(
                f"scale_dtype must be None, {', '.join(SCALE_DTYPES)}, got {shorten_repr(self.scale_dtype)}"
            )

    @property
    def minimum(self) -> float:
        """The smallest code; for type "float" the smallest number of the format."""
        if self.type == "float":
            return -E4M3.max
        return -(1 << (self.num_bits - 1)) if self.symmetric else 0

    @property
    def maximum(self) -> float:
        """The largest code; for type "float" the largest number of the format."""
        if self.type == "float":
            return E4M3.max
        return (1 << (self.num_bits - 1)) - 1 if self.symmetric else (1 << self.num_bits) - 1


def _check_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an int, got {shorten_repr(value)}")


def check_group_size(in_features: int, group_size: int) -> None:
    """Refuse a group that does not go evenly into a row of `in_features` weights.

    Raises:
        ValueError: with sizes that would fit: powers of two, and the whole row. Other divisors do,
            too; a kernel may take fewer.
    """
    _check_int("group_size", group_size)
    if group_size >= 1 and in_features % group_size == 0:
        return
    fits = [2**k for k in range(3, 15) if in_features % 2**k == 0]
    if in_features not in fits:
        fits.append(in_features)
    raise ValueError(
        f"group_size {group_size} does not divide the {in_features} inputs of the layer; "
        f"{', '.join(map(str, fits))} would, among others"
    )


def _grouped(weight: Array, args: QuantArgs) -> Array:
    """`weight` [out, in] as [rows, groups, weights that share a scale]."""
    if weight.ndim != 2 or weight.size == 0:
        raise ValueError(f"a weight must be [out, in] and not empty, got shape {weight.shape}")
    rows, columns = weight.shape
    if args.strategy == "tensor":
        return weight.reshape(1, 1, -1)
    if args.strategy != "group":
        return weight.reshape(rows, 1, columns)
    assert args.group_size is not None
    check_group_size(columns, args.group_size)
    return weight.reshape(rows, columns // args.group_size, args.group_size)


def choose_scales(weight: Array, args: QuantArgs) -> tuple[FloatArray, Codes | None]:
    """The scale of each group and, for an asymmetric grid, the code that stands for 0.

    A symmetric scale is the largest magnitude over *half the range of codes*: 7.5 for 4 bits, 127.5 for 8. So
    the largest weight of a group lies half a step outside of the grid if it is positive. (vLLM's
    kernels that quantise activations divide by 127 instead.)

    Args:
        weight: [out, in], finite; for strategy "token" activations, [tokens, in].

    Returns:
        scale: [out, groups] float32, above 0; [1, 1] for strategy "tensor".
        zero_point: the same shape, int32, 0 to 2^bits - 1; None for a symmetric grid.

    Raises:
        ValueError: a weight is not finite, or the group does not divide a row.
    """
    groups = _grouped(np.asarray(weight, np.float32), args)
    if not np.isfinite(groups).all():
        raise ValueError("weights must be finite to be quantised, got NaN or infinity")
    # 0 is always a number of the grid: padding and pruned weights stay what they are.
    low = np.minimum(groups.min(axis=-1), np.float32(0))
    high = np.maximum(groups.max(axis=-1), np.float32(0))
    codes = np.float32(args.maximum - args.minimum)
    zero_point: Codes | None = None
    if args.symmetric:
        scale = np.maximum(-low, high) / (codes / np.float32(2))
    else:
        scale = (high - low) / codes
        half = np.float32(2 ** (args.num_bits - 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            signed = np.clip(-half - low / scale, -half, half - 1)  # NaN where all weights are 0
        zero_point = (np.rint(np.nan_to_num(signed)) + half).astype(np.int32)
    dtype = args.scale_dtype or "float32"
    scale = stored_as(scale, dtype)
    return np.where(scale == 0, np.float32(SCALE_DTYPES[dtype]), scale), zero_point


def bfloat16_bits(x: FloatArray) -> NDArray[np.uint16]:
    """float32 numbers as bfloat16, which numpy lacks: the upper 16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    # Half of the lower half, and one more where the last bit that stays is 1.
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def stored_as(x: FloatArray, dtype: str) -> FloatArray:
    """`x` as it reads after being stored in `dtype`, "float16", "bfloat16" or "float32"; float32."""
    if dtype == "bfloat16":
        return (bfloat16_bits(x).astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return np.clip(x, -LARGEST[dtype], LARGEST[dtype]).astype(np.float16).astype(np.float32)
    return x


def _of_columns(values: Array, shape: tuple[int, ...], g_idx: Array | None) -> Array:
    """Scale or zero point of every weight, [out or 1, in], from [out or 1, groups]."""
    if g_idx is None:
        return np.repeat(values, shape[1] // values.shape[1], axis=1)
    return values[:, g_idx]


def quantize(
    weight: Array,
    scale: FloatArray,
    zero_point: Codes | None,
    args: QuantArgs,
    g_idx: Array | None = None,
) -> Codes:
    """The nearest code of each weight; a tie goes to the even one, and beyond the grid to its end.

    Args:
        weight: [out, in].
        scale, zero_point: from `choose_scales`.
        g_idx: [in], the group of each column where they are not in order.

    Returns:
        [out, in] int32: `args.minimum` to `args.maximum`; for type "float" bytes of E4M3.
    """
    weight = np.asarray(weight, np.float32)
    _check_parts(weight.shape, scale, zero_point, args.symmetric, g_idx)
    scaled = weight / _of_columns(scale, weight.shape, g_idx)
    if args.type == "float":
        encoded: Codes = E4M3.encode(scaled, saturate=True).astype(np.int32)
        return encoded
    half = np.float32(0 if zero_point is None else 2 ** (args.num_bits - 1))
    if zero_point is not None:
        # Added in the signed form, as compressed-tensors does: float32 may round the sum otherwise.
        scaled += _of_columns(zero_point, weight.shape, g_idx).astype(np.float32) - half
    codes = np.rint(np.clip(scaled, args.minimum - half, args.maximum - half)) + half
    return codes.astype(np.int32)


def dequantize(
    codes: Array, scale: FloatArray, zero_point: Codes | None, g_idx: Array | None = None
) -> FloatArray:
    """The weights that codes stand for: (code - zero point) times scale, in float32.

    Args:
        codes: [out, in]; the codes of type "float" must have been decoded to numbers.
        scale, zero_point: [out or 1, groups].
        g_idx: [in], the group of each column where they are not in order.

    Returns:
        [out, in] float32.
    """
    _check_parts(codes.shape, scale, zero_point, zero_point is None, g_idx)
    numbers = codes.astype(np.float32)
    if zero_point is not None:
        numbers -= _of_columns(zero_point, codes.shape, g_idx).astype(np.float32)
    return numbers * _of_columns(scale, codes.shape, g_idx).astype(np.float32)


def _check_parts(
    shape: tuple[int, ...],
    scale: Array,
    zero_point: Array | None,
    symmetric: bool,
    g_idx: Array | None,
) -> None:
    """The shapes of codes, scale, zero point and g_idx go together, or ValueError."""
    if len(shape) != 2:
        raise ValueError(f"codes must be [out, in], got shape {shape}")
    if scale.ndim != 2 or scale.shape[0] not in (1, shape[0]) or scale.shape[1] == 0:
        raise ValueError(
            f"a scale for codes of shape {shape} must be [{shape[0]} or 1, groups], got "
            f"shape {scale.shape}"
        )
    groups = scale.shape[1]
    if g_idx is None and shape[1] % groups != 0:
        raise ValueError(f"{groups} groups do not divide the {shape[1]} inputs of the layer")
    if symmetric != (zero_point is None):
        raise ValueError(
            "a symmetric grid has no zero point" if symmetric else "the zero point is missing"
        )
    if zero_point is not None and zero_point.shape != scale.shape:
        raise ValueError(
            f"the zero point must have the scale's shape {scale.shape}, got {zero_point.shape}"
        )
    if g_idx is not None:
        if g_idx.shape != (shape[1],):
            raise ValueError(f"g_idx must have shape ({shape[1]},), got {g_idx.shape}")
        if g_idx.size and not 0 <= int(g_idx.min()) <= int(g_idx.max()) < groups:
            raise ValueError(
                f"g_idx must be 0 to {groups - 1}, got {int(g_idx.min())} to {int(g_idx.max())}"
            )


@dataclass(frozen=True)
class QuantizedWeight:
    """One linear layer's weight as codes; `save.py` writes it, `linear.py` computes with it.

    Raises ValueError where shapes or codes do not fit `args`.
    """

    codes: Codes
    """[out, in] int32; for type "float" the bytes of E4M3."""
    scale: FloatArray
    """[out or 1, groups] float32."""
    zero_point: Codes | None
    """The scale's shape, int32; None for a symmetric grid."""
    args: QuantArgs
    g_idx: NDArray[np.int32] | None = field(default=None)
    """[in] int32, the group of each column; None where they follow one another."""

    def __post_init__(self) -> None:
        _check_parts(self.codes.shape, self.scale, self.zero_point, self.args.symmetric, self.g_idx)
        if self.args.type == "float":
            low, high = 0, 255
        else:
            low, high = int(self.args.minimum), int(self.args.maximum)
        for name, values in (("codes", self.codes), ("zero_point", self.zero_point)):
            if (
                values is not None
                and values.size
                and not low <= values.min() <= values.max() <= high
            ):
                raise ValueError(
                    f"{name} must be {low} to {high}, got {values.min()} to {values.max()}"
                )

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        out, inputs = self.codes.shape
        return out, inputs

    def dequantize(self) -> FloatArray:
        """The weight that the layer computes with, [out, in] float32."""
        codes: Array = self.codes
        if self.args.type == "float":
            codes = E4M3.decode(codes.astype(np.uint8))
        return dequantize(codes, self.scale, self.zero_point, self.g_idx)


def round_to_nearest(weight: Array, args: QuantArgs) -> QuantizedWeight:
    """Choose the scales of `weight` [out, in] and round each weight by itself: the plainest method."""
    scale, zero_point = choose_scales(weight, args)
    return QuantizedWeight(quantize(weight, scale, zero_point, args), scale, zero_point, args)

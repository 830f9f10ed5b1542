"""Small floating-point formats, bit by bit: E4M3, E5M2, E2M1, the scale format E8M0, and blocks of them.

numpy has no such types, so a number is kept as its code, in a uint8. The formats are those that vLLM stores
weights, activations and the KV cache in: E4M3 is `torch.float8_e4m3fn`, E5M2 `torch.float8_e5m2`, E2M1 and
E8M0 are what MXFP4 and NVFP4 checkpoints pack into bytes
(`vllm/model_executor/layers/quantization/utils/nvfp4_emulation_utils.py:425 cast_to_fp4`).

A code is a sign, an exponent e and a mantissa m, and counts up as its number does: the code after the
largest number of one exponent is the smallest of the next. So `encode` only counts steps of the size that
numbers have there, and a carry into the exponent comes by itself.

    e > 0    (1 + m / 2^mantissa_bits) * 2^(e - bias)          a normal number
    e = 0    (m / 2^mantissa_bits) * 2^(1 - bias)              a subnormal one, and zero

Papers: FP8 in Micikevicius et al., 2022 (arXiv 2209.05433); E2M1, E8M0 and blocks in the OCP Microscaling
specification and Rouhani et al., 2023 (arXiv 2310.10537).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float32]
Codes = NDArray[np.uint8]

MXFP4_BLOCK = 32
NVFP4_BLOCK = 16


@dataclass(frozen=True)
class FloatFormat:
    """A format of at most 8 bits with a sign.

    Attributes:
        name: as papers write it.
        exponent_bits, mantissa_bits: with the sign they are the code's bits, from the top down.
        bias: what is taken off the stored exponent.
        specials: which codes are no numbers. `ieee`: those with all ones in the exponent are an infinity
            (mantissa 0) or NaN. `nan`: only all ones in exponent *and* mantissa, which is NaN. `none`: none.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "nan", "none"]

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def _largest_code(self) -> int:
        """The code of the largest finite number; the numbers' codes end there."""
        ones: int = (1 << (self.bits - 1)) - 1
        return ones - {"ieee": 1 << self.mantissa_bits, "nan": 1, "none": 0}[self.specials]

    @cached_property
    def max(self) -> float:
        """The largest finite number: 448 in E4M3, 57,344 in E5M2, 6 in E2M1."""
        return float(self.values[self._largest_code])

    @cached_property
    def values(self) -> Array:
        """float32 `[2^bits]`: the number of each code."""
        codes = np.arange(2**self.bits)
        magnitude = codes & (2 ** (self.bits - 1) - 1)
        exponent = magnitude >> self.mantissa_bits
        fraction = (magnitude & (2**self.mantissa_bits - 1)) / 2**self.mantissa_bits
        # Exponent 0 has the steps of exponent 1, without the leading 1.
        leading = (exponent > 0).astype(np.float64)
        number = (leading + fraction) * 2.0 ** (np.maximum(exponent, 1) - self.bias)
        number[magnitude > self._largest_code] = np.nan
        if self.specials == "ieee":
            number[magnitude == self._largest_code + 1] = np.inf
        number[codes > magnitude] *= -1  # -0.0 too
        values: Array = number.astype(np.float32)
        return values

    def decode(self, codes: NDArray[Any]) -> Array:
        """The numbers of these codes: exact, in float32, which holds all of them.

        Args:
            codes: uint8 of any shape.

        Raises ValueError for another dtype, or a code with more bits than the format has.
        """
        codes = np.asarray(codes)
        if codes.dtype != np.uint8:
            raise ValueError(f"{self.name}: codes must be uint8, got {codes.dtype}")
        if self.bits < 8 and codes.size and codes.max() >= 2**self.bits:
            raise ValueError(
                f"{self.name}: a code has {self.bits} bits, so it is below {2**self.bits}; got "
                f"{codes.max()} (a packed byte holds two codes: `unpack_nibbles`)"
            )
        numbers: Array = self.values[codes]
        return numbers

    def encode(self, x: ArrayLike, saturate: bool = True) -> Codes:
        """The nearest number's code; of two that are equally near, the even one.

        Args:
            x: float32 of any shape; anything else is made float32 first.
            saturate: a number that rounds past `max`, and an infinity, becomes `max` with its sign, as
                `cvt.satfinite` does on a GPU, and the clamp before the cast in vLLM's quantisers. Without,
                it becomes what the format has: an infinity (E5M2), NaN (E4M3), as torch's cast does; E2M1
                has neither and saturates anyway.

        NaN stays NaN, with its sign. Raises ValueError for a NaN where the format has none. The clamp is at
        `vllm/model_executor/layers/quantization/input_quant_fp8.py:225 in QuantFP8.forward_native`.
        """
        x = np.asarray(x, np.float32)
        negative = np.signbit(x)
        magnitude = np.abs(x)
        is_nan = np.isnan(x)
        if self.specials == "none" and is_nan.any():
            raise ValueError(f"{self.name} has no NaN, and x holds {int(is_nan.sum())}")
        # Past twice the largest number nothing changes any more, and no product below overflows.
        magnitude = np.minimum(np.where(is_nan, 0, magnitude), np.float32(2 * self.max))
        # 2^exponent <= magnitude, and below the smallest normal number the steps stay as they are there.
        exponent = np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, 1 - self.bias)
        exponent = np.maximum(exponent, 1 - self.bias)
        # A product with a power of two is exact, so this rint is the only rounding, half to even. A step's
        # number is even where its code is: below it stand whole exponents, of 2^mantissa_bits codes each.
        steps = np.rint(np.ldexp(magnitude, self.mantissa_bits - exponent)).astype(np.int32)
        code = ((exponent - 1 + self.bias) << self.mantissa_bits) + steps
        largest = self._largest_code
        past = largest if saturate or self.specials == "none" else largest + 1
        code = np.where(code > largest, past, code)
        if self.specials != "none":
            quiet = largest + (1 if self.specials == "nan" else 1 + 2 ** (self.mantissa_bits - 1))
            code = np.where(is_nan, quiet, code)
        signed: Codes = (code | (negative << (self.bits - 1))).astype(np.uint8)
        return signed


E4M3 = FloatFormat("E4M3", 4, 3, 7, "nan")
"""`torch.float8_e4m3fn`: weights, activations, the KV cache, the block scales of NVFP4."""
E5M2 = FloatFormat("E5M2", 5, 2, 15, "ieee")
"""`torch.float8_e5m2`: float16 cut after eight bits; in vLLM a KV cache dtype, never a weight's."""
E2M1 = FloatFormat("E2M1", 2, 1, 1, "none")
"""FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""


class ScaleFormat:
    """E8M0: eight bits of exponent and nothing else. Code c is 2^(c - 127); 255 is NaN. No zero, no sign."""

    name = "E8M0"
    bits = 8

    def decode(self, codes: NDArray[Any]) -> Array:
        """uint8 of any shape to float32, exact: 2^-127 is subnormal there. Raises ValueError as above."""
        codes = np.asarray(codes)
        if codes.dtype != np.uint8:
            raise ValueError(f"{self.name}: codes must be uint8, got {codes.dtype}")
        power = np.ldexp(np.float32(1), np.minimum(codes.astype(np.int32), 254) - 127)
        return np.where(codes == 255, np.float32(np.nan), power)

    def encode(self, x: ArrayLike, saturate: bool = True) -> Codes:
        """The nearest power of two's code; half-way (1.5, 3, 6) it is the larger one.

        A float32 has the same exponent with the same bias in its bits 23 to 30, so adding half of bit 23
        rounds it. Where that field is 0, everything above 2^-127 is rounded up, as ml_dtypes and torch do.

        What is no positive number becomes NaN. (torch's cast ignores the sign, and makes 2^-127 of 0.) What
        rounds past 2^127, and infinity, becomes 2^127, and NaN without `saturate`.
        """
        x = np.asarray(x, np.float32)
        field = x.view(np.uint32)
        code = (field + np.uint32(1 << 22)) >> np.uint32(23)
        code = np.where(field == 1 << 22, 0, code)  # 2^-127 itself
        code = np.where(code > 254, 254 if saturate else 255, code)
        return np.where(x > 0, code, 255).astype(np.uint8)


E8M0 = ScaleFormat()


def pack_nibbles(codes: NDArray[np.uint8]) -> Codes:
    """Two codes of 4 bits a byte, the first in the low half: `[..., n]` to `[..., n / 2]`.

    Raises ValueError for an odd n, or a code of more than 4 bits.
    Source: `compressed_tensors/compressors/nvfp4/helpers.py`, `pack_fp4_to_uint8`.
    """
    codes = np.asarray(codes)
    if codes.shape[-1] % 2:
        raise ValueError(
            f"{codes.shape[-1]} codes of 4 bits do not fill whole bytes: pack an even number"
        )
    if codes.size and codes.max() > 15:
        raise ValueError(f"a code of 4 bits is at most 15, got {codes.max()}")
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpack_nibbles(packed: NDArray[np.uint8]) -> Codes:
    """`[..., n / 2]` bytes to `[..., n]` codes of 4 bits."""
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    return halves.reshape(*packed.shape[:-1], -1).astype(np.uint8)


def _blocks(x: ArrayLike, size: int, name: str) -> Array:
    """`[..., n]` to `[..., n / size, size]`. Raises ValueError if that is not whole, or x is not finite."""
    x = np.asarray(x, np.float32)
    if x.ndim == 0 or x.shape[-1] % size:
        raise ValueError(
            f"{name}: blocks of {size} do not divide a row of {x.shape[-1:] or 'none'}"
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"{name}: x holds {int((~np.isfinite(x)).sum())} numbers that are not finite"
        )
    return x.reshape(*x.shape[:-1], -1, size)


def encode_mxfp4(x: ArrayLike) -> tuple[Codes, Codes]:
    """E2M1 codes `[..., n]` and a power of two for each 32 of them, E8M0 codes `[..., n / 32]`.

    The scale is the power of two that brings the block's largest number to at least 3.5 and below 7: 6 is
    the most that a code says. (The specification brings it to at least 4 and below 8, and cuts 7.9 down
    to 6.) A block of zeros gets the smallest scale.

    Raises ValueError where rows are no whole blocks, or a number is not finite.
    Source: `compressed_tensors/quantization/utils/mxfp_utils.py`, `generate_mx_scales`.
    """
    blocks = _blocks(x, MXFP4_BLOCK, "MXFP4")
    fraction, exponent = np.frexp(np.abs(blocks).max(axis=-1))
    # fraction in [0.5, 1): from 0.875 on, that is 1.75 of a power of two, the next power is taken.
    scale_code = exponent - 1 + (fraction >= 0.875) - 2 + 127
    scale_code = np.where(fraction > 0, np.clip(scale_code, 0, 254), 0).astype(np.uint8)
    codes = E2M1.encode(blocks / E8M0.decode(scale_code)[..., None])
    return codes.reshape(np.shape(x)), scale_code


def decode_mxfp4(codes: Codes, scale_code: Codes) -> Array:
    """float32 `[..., n]` of what `encode_mxfp4` gives."""
    blocks = E2M1.decode(codes).reshape(*scale_code.shape, MXFP4_BLOCK)
    return (blocks * E8M0.decode(scale_code)[..., None]).reshape(codes.shape)


def encode_nvfp4(
    x: ArrayLike, global_scale: np.float32 | None = None
) -> tuple[Codes, Codes, np.float32]:
    """E2M1 codes `[..., n]`, an E4M3 scale for each 16 of them, `[..., n / 16]`, and one float32 for all.

    `global_scale` is what numbers are *multiplied* by before their blocks' scales are taken: 448 * 6 over the
    tensor's largest, so that the block that holds it gets the scale 448. Checkpoints keep it in this form
    (`weight_global_scale`), and vLLM turns it over on loading.
    A block whose scale rounds to 0 becomes zeros.

    Args:
        global_scale: one chosen elsewhere; None: from `x`, and 1 where `x` is all zeros.

    Raises ValueError where rows are no whole blocks, or a number is not finite.
    Source: `vllm/model_executor/layers/quantization/utils/nvfp4_emulation_utils.py:439 ref_nvfp4_quant`.
    """
    blocks = _blocks(x, NVFP4_BLOCK, "NVFP4")
    largest = np.abs(blocks).max(axis=-1)
    if global_scale is None:
        most = largest.max(initial=0)
        with np.errstate(divide="ignore", over="ignore"):
            global_scale = np.float32(E4M3.max * E2M1.max) / np.float32(most)
        if not np.isfinite(global_scale):
            global_scale = np.float32(1)
    scale_code = E4M3.encode(global_scale * (largest * np.float32(1 / E2M1.max)))
    scale = E4M3.decode(scale_code) / global_scale
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 0, 1 / scale, 0).astype(np.float32)
    codes = E2M1.encode(blocks * inverse[..., None])
    return codes.reshape(np.shape(x)), scale_code, np.float32(global_scale)


def decode_nvfp4(codes: Codes, scale_code: Codes, global_scale: np.float32) -> Array:
    """float32 `[..., n]` of what `encode_nvfp4` gives."""
    blocks = E2M1.decode(codes).reshape(*scale_code.shape, NVFP4_BLOCK)
    scale = E4M3.decode(scale_code) / np.float32(global_scale)
    return (blocks * scale[..., None]).reshape(codes.shape)

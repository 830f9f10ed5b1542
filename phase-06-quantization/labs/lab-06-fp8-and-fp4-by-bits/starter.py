"""Lab 06-06: FP8 and FP4 by bits. Your work: every NotImplementedError.

A code is an int: sign, exponent, mantissa, from the top bit down. A number is a Python float that float32
holds too, so nothing is rounded before you round it.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple


class Format(NamedTuple):
    """A format with a sign (given).

    Attributes:
        exponent_bits, mantissa_bits: with the sign bit they are the whole code.
        bias: what is taken off the stored exponent.
        specials: which codes are no numbers. `ieee`: where the exponent is all ones, mantissa 0 is an
            infinity and any other is NaN. `nan`: only exponent and mantissa all ones, which is NaN; the other
            codes with that exponent are numbers. `none`: every code is a number.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "nan", "none"]


E4M3 = Format("E4M3", 4, 3, 7, "nan")
E5M2 = Format("E5M2", 5, 2, 15, "ieee")
E2M1 = Format("E2M1", 2, 1, 1, "none")


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the three questions of the README, under the names that stand there."""
    raise NotImplementedError


# ---- one number ----------------------------------------------------------------------------------


def decode(fmt: Format, code: int) -> float:
    """The number of a code, exactly. Given, on your `largest_code`.

    With M mantissa bits, a stored exponent e and a stored mantissa m:

        e > 0    (1 + m / 2^M) * 2^(e - bias)
        e = 0    (m / 2^M) * 2^(1 - bias)

    The sign stays, on 0 too. For what is no number: `math.nan`, and `math.inf` with its sign.
    """
    sign = code >> (fmt.exponent_bits + fmt.mantissa_bits)
    exponent = (code >> fmt.mantissa_bits) & ((1 << fmt.exponent_bits) - 1)
    mantissa = code & ((1 << fmt.mantissa_bits) - 1)
    magnitude = code - (sign << (fmt.exponent_bits + fmt.mantissa_bits))
    if magnitude > largest_code(fmt):
        infinite = fmt.specials == "ieee" and mantissa == 0
        number = math.inf if infinite else math.nan
    elif exponent == 0:
        number = math.ldexp(mantissa, 1 - fmt.bias - fmt.mantissa_bits)
    else:
        whole = (1 << fmt.mantissa_bits) + mantissa
        number = math.ldexp(whole, exponent - fmt.bias - fmt.mantissa_bits)
    return -number if sign else number


def largest_code(fmt: Format) -> int:
    """The code of the largest finite number. From 0 up to it, codes are in the order of their numbers."""
    raise NotImplementedError


def encode_magnitude(fmt: Format, x: float, saturate: bool) -> int:
    """The code of the number nearest to x; a tie goes to the code whose last bit is 0.

    x is at least 0, and may lie beyond the largest number. Round as if there were one more number, a step
    further: an x that rounds to the largest number gets its code. Any larger x, infinity included, gives:

    - with `saturate`, the code of the largest number;
    - without: in `ieee` infinity, in `nan` NaN, either of which is one past the largest. `none` has neither,
      and saturates.
    """
    raise NotImplementedError


def encode(fmt: Format, x: float, saturate: bool) -> int:
    """The code of x. Given, on your `encode_magnitude`: the sign, and NaN.

    The sign stays, on 0 too. A NaN stays one, with its sign, saturating or not: in `nan` exponent and
    mantissa all ones, in `ieee` exponent all ones and of the mantissa the top bit alone. Raises ValueError
    for a NaN where `specials` is `none`.
    """
    sign = int(math.copysign(1.0, x) < 0) << (fmt.exponent_bits + fmt.mantissa_bits)
    if not math.isnan(x):
        return encode_magnitude(fmt, abs(x), saturate) | sign
    if fmt.specials == "none":
        raise ValueError(f"{fmt.name} has no code for NaN")
    quiet = 1 if fmt.specials == "nan" else 1 + (1 << (fmt.mantissa_bits - 1))
    return largest_code(fmt) + quiet | sign


# ---- a scale, given ------------------------------------------------------------------------------


def decode_scale(code: int) -> float:
    """Given: E8M0, the scale of MX formats: code c from 0 to 254 is 2^(c - 127), and 255 is NaN."""
    return math.nan if code == 255 else math.ldexp(1.0, code - 127)


# ---- blocks --------------------------------------------------------------------------------------


def pack(codes: list[int]) -> bytes:
    """Given: codes of 4 bits, an even number of them, two a byte: the first of a pair in the low half."""
    return bytes(low | (high << 4) for low, high in zip(codes[::2], codes[1::2], strict=True))


def encode_mxfp4(block: list[float]) -> tuple[bytes, int]:
    """32 numbers in E2M1 with one scale: 16 bytes and the scale's E8M0 code.

    The scale is a power of two. Divided by it, the block's largest magnitude is at least 3.5 and below 7,
    so that it rounds to 4 or 6 and is never cut off by much. A block of zeros gets code 0. Every magnitude
    is 0 or between 2^-100 and 2^100.
    """
    raise NotImplementedError


def encode_nvfp4(block: list[float], global_scale: float) -> tuple[bytes, int]:
    """16 numbers in E2M1 with one scale in E4M3: 8 bytes and the scale's code.

    The block's scale is `global_scale` times its largest magnitude over 6, encoded in E4M3, saturating. A
    number is divided by what a reader will multiply by: the stored scale over `global_scale`. Where
    the scale is stored as 0, each number becomes 0, with its sign.
    """
    raise NotImplementedError


def choose_global_scale(largest: float) -> float:
    """The `global_scale` of a tensor whose largest magnitude is `largest`, above 0: with it the block that
    holds that number gets the largest scale that E4M3 has."""
    raise NotImplementedError

"""Lab 06-06: the reference solution."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple


class Format(NamedTuple):
    """A format with a sign."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "nan", "none"]


E4M3 = Format("E4M3", 4, 3, 7, "nan")
E5M2 = Format("E5M2", 5, 2, 15, "ieee")
E2M1 = Format("E2M1", 2, 1, 1, "none")


def predictions() -> dict[str, list[float]]:
    return {
        "largest numbers": [448, 57_344, 6],
        "numbers from 1 to 2": [8, 4, 2],
        "17, 19, 21": [16, 20, 20],
    }


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
    ones = (1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1
    return ones - {"ieee": 1 << fmt.mantissa_bits, "nan": 1, "none": 0}[fmt.specials]


def encode_magnitude(fmt: Format, x: float, saturate: bool) -> int:
    largest = largest_code(fmt)
    code = largest + 1
    if x < math.inf:
        exponent = 1 - fmt.bias  # below the smallest normal number the steps stay as they are there
        if x:
            exponent = max(exponent, math.frexp(x)[1] - 1)
        steps = round(math.ldexp(x, fmt.mantissa_bits - exponent))  # half to even
        code = ((exponent - 1 + fmt.bias) << fmt.mantissa_bits) + steps
    if code > largest:
        code = largest if saturate or fmt.specials == "none" else largest + 1
    return code


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


def decode_scale(code: int) -> float:
    """Given: E8M0, the scale of MX formats: code c from 0 to 254 is 2^(c - 127), and 255 is NaN."""
    return math.nan if code == 255 else math.ldexp(1.0, code - 127)


def pack(codes: list[int]) -> bytes:
    """Given: codes of 4 bits, an even number of them, two a byte: the first of a pair in the low half."""
    return bytes(low | (high << 4) for low, high in zip(codes[::2], codes[1::2], strict=True))


def encode_mxfp4(block: list[float]) -> tuple[bytes, int]:
    fraction, exponent = math.frexp(max(abs(x) for x in block))
    if fraction == 0:
        return bytes(16), 0
    # 4 to 7 with the exponent taken as it is; from 7 on, the next one makes it 3.5 to 4.
    code = exponent - 3 + (fraction >= 0.875) + 127
    scale = decode_scale(code)
    return pack([encode(E2M1, x / scale, True) for x in block]), code


def encode_nvfp4(block: list[float], global_scale: float) -> tuple[bytes, int]:
    code = encode(E4M3, global_scale * max(abs(x) for x in block) / 6, True)
    scale = decode(E4M3, code) / global_scale
    scaled = [x / scale if code else 0 * x for x in block]
    return pack([encode(E2M1, x, True) for x in scaled]), code


def choose_global_scale(largest: float) -> float:
    return 448 * 6 / largest

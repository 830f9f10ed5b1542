"""Lab 06-06: FP8 and FP4 by bits. Your work: every NotImplementedError.

A code is an int: sign, exponent, mantissa, from the top bit down. A number is a Python float that float32
holds too, so nothing is rounded before you round it.
"""

from __future__ import annotations

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
    """Your answers to the five questions of the README, under the names that stand there."""
    raise NotImplementedError


# ---- one number ----------------------------------------------------------------------------------


def decode(fmt: Format, code: int) -> float:
    """The number of a code, exactly.

    With M mantissa bits, a stored exponent e and a stored mantissa m:

        e > 0    (1 + m / 2^M) * 2^(e - bias)
        e = 0    (m / 2^M) * 2^(1 - bias)

    The sign stays, on 0 too. For what is no number: `math.nan`, and `math.inf` with its sign.
    """
    raise NotImplementedError


def largest_code(fmt: Format) -> int:
    """The code of the largest finite number. From 0 up to it codes stand in the order of their numbers."""
    raise NotImplementedError


def encode(fmt: Format, x: float, saturate: bool) -> int:
    """The code of the number nearest to x; of two that are equally near, the one whose last bit is 0.

    x may lie beyond the largest number. What still rounds to it, as if there were one more number behind
    it, a step further, gets its code. Of what does not, and of the infinities:

    - with `saturate`, the code of the largest number, with x's sign;
    - without: in `ieee` an infinity, in `nan` NaN, both with x's sign. `none` has neither, and saturates.

    A NaN stays one, with its sign, saturating or not: in `nan` exponent and mantissa all ones, in `ieee`
    exponent all ones and of the mantissa the top bit alone. Raises ValueError for a NaN where `specials` is
    `none`.
    """
    raise NotImplementedError


# ---- a scale -------------------------------------------------------------------------------------


def decode_scale(code: int) -> float:
    """E8M0, the scale of MX formats: code c from 0 to 254 is 2^(c - 127), and 255 is NaN."""
    raise NotImplementedError


def encode_scale(x: float) -> int:
    """The code of the nearest power of two, for an x of at least 2^-126. Half-way, at 1.5 times a power of
    two, it is the larger one.

    What is past 2^127 saturates, infinity too. 0, anything negative and NaN get the code of NaN.
    """
    raise NotImplementedError


# ---- blocks --------------------------------------------------------------------------------------


def pack(codes: list[int]) -> bytes:
    """Codes of 4 bits, an even number of them, two a byte: the first of a pair in the low half."""
    raise NotImplementedError


def encode_mxfp4(block: list[float]) -> tuple[bytes, int]:
    """32 numbers in E2M1 with one scale: 16 bytes and the scale's E8M0 code.

    The scale is a power of two. With it the block's largest magnitude comes to at least 3.5 and below 7,
    so that it rounds to 4 or 6 and is never cut off by much. A block of zeros gets code 0. Every magnitude
    is 0 or between 2^-100 and 2^100.
    """
    raise NotImplementedError


def encode_nvfp4(block: list[float], global_scale: float) -> tuple[bytes, int]:
    """16 numbers in E2M1 with one scale in E4M3: 8 bytes and the scale's code.

    The block's scale is `global_scale` times its largest magnitude over 6, encoded in E4M3, saturating. A
    number is divided by what a reader will multiply with: the scale as stored, over `global_scale`. Where
    the scale is stored as 0, each number becomes 0, with its sign.
    """
    raise NotImplementedError


def choose_global_scale(largest: float) -> float:
    """The `global_scale` of a tensor whose largest magnitude is `largest`, above 0: with it the block that
    holds that number gets the largest scale that E4M3 has."""
    raise NotImplementedError

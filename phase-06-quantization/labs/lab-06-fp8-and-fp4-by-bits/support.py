"""What the tests of lab 06-06 share: the recorded answers, and numbers written so that one can find them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parent / "answers.json").read_text(encoding="utf-8")
)
"""What ml_dtypes, compressed-tensors and vLLM said; record.py asked them."""


def floats(text: str) -> list[float]:
    """Python floats from float32 bits in hex."""
    return [float(x) for x in np.frombuffer(bytes.fromhex(text), ">f4")]


def asked(name: str, kind: str) -> list[tuple[float, int]]:
    """Numbers of a kind, each with the code that ml_dtypes gives it."""
    x, codes = ANSWERS[name]["encode"][kind]
    return list(zip(floats(x), bytes.fromhex(codes), strict=True))


def blocks(name: str, size: int) -> list[list[float]]:
    """The blocks that were asked about."""
    x = floats(ANSWERS[name]["x"])
    return [x[i : i + size] for i in range(0, len(x), size)]


def same(got: Any, want: float) -> bool:
    """The same number, -0 and NaN told apart from the others."""
    if not isinstance(got, float | int):
        return False
    if math.isnan(want):
        return math.isnan(got)
    return got == want and math.copysign(1, got) == math.copysign(1, want)


def bits(fmt: Any, code: int) -> str:
    """A code with its fields apart: 0 1111 110."""
    text = f"{code:0{1 + fmt.exponent_bits + fmt.mantissa_bits}b}"
    return f"{text[0]} {text[1 : 1 + fmt.exponent_bits]} {text[1 + fmt.exponent_bits :]}"


def show(x: float) -> str:
    """A float so that it can be copied, and its neighbours told apart."""
    return f"{x:.9g} (float.fromhex('{x.hex()}'))" if math.isfinite(x) and x else str(x)

"""The small float formats: every code and about 4,000 floats as ml_dtypes has them, blocks as vLLM has them.

The answers are those that lab 06-06 keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.layers.quantization import float_formats
from mini_vllm.layers.quantization.float_formats import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    decode_mxfp4,
    decode_nvfp4,
    encode_mxfp4,
    encode_nvfp4,
    pack_nibbles,
    unpack_nibbles,
)

[LAB] = (Path(__file__).resolve().parents[4] / "phase-06-quantization" / "labs").glob("lab-06-*")
ANSWERS: dict[str, Any] = json.loads((LAB / "answers.json").read_text(encoding="utf-8"))
FORMATS = ("E4M3", "E5M2", "E2M1", "E8M0")


def floats(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), ">f4").astype(np.float32)


def codes(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_and_every_float(name: str) -> None:
    """To the bit; in E8M0 and past the end without saturating."""
    fmt = getattr(float_formats, name)
    want = floats(ANSWERS[name]["decode"])
    got = fmt.decode(np.arange(len(want), dtype=np.uint8))
    assert got.dtype == np.float32
    assert np.array_equal(got, want, equal_nan=True)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))
    for kind, (x, answer) in ANSWERS[name]["encode"].items():
        assert np.array_equal(fmt.encode(floats(x), saturate=False), codes(answer)), kind
        if kind in ("numbers", "ties", "beside ties", "zero", "NaN"):
            assert np.array_equal(fmt.encode(floats(x)), codes(answer)), f"{kind}, saturating"


def test_saturating() -> None:
    """The largest number for whatever is beyond it, with its sign; NaN stays."""
    x = np.array([464, 464.1, -1e30, np.inf, -np.inf, np.nan], np.float32)
    assert E4M3.encode(x).tolist() == [126, 126, 254, 126, 254, 127]
    assert E5M2.encode(x * 200).tolist() == [123, 123, 251, 123, 251, 126]
    assert E2M1.encode(x[:5]).tolist() == [7, 7, 15, 7, 15]
    assert E8M0.encode(np.array([3e38, np.inf, 0, -1], np.float32)).tolist() == [254, 254, 255, 255]
    assert [fmt.max for fmt in (E4M3, E5M2, E2M1)] == [448, 57_344, 6]


def test_any_shape() -> None:
    x = np.linspace(-500, 500, 24, dtype=np.float32).reshape(2, 3, 4)
    assert E4M3.encode(x).shape == E4M3.decode(E4M3.encode(x)).shape == x.shape
    assert E4M3.encode(np.float32(1.0)).tolist() == 56
    assert E4M3.encode(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_blocks() -> None:
    """Scales and packed bytes of compressed-tensors and vLLM; what is read back is codes times scales."""
    mx, nv = ANSWERS["MXFP4"], ANSWERS["NVFP4"]
    x = floats(mx["x"]).reshape(-1, 32)
    got, scales = encode_mxfp4(x)
    assert scales[:, 0].tolist() == mx["scales"]
    assert pack_nibbles(got).tobytes().hex() == mx["packed"]
    assert np.array_equal(unpack_nibbles(pack_nibbles(got)), got)
    assert np.array_equal(decode_mxfp4(got, scales), E2M1.decode(got) * E8M0.decode(scales))
    x = floats(nv["x"]).reshape(-1, 16)
    got, scales, global_scale = encode_nvfp4(x)
    assert global_scale == np.float32(nv["global_scale"])
    assert scales[:, 0].tolist() == nv["scales"]
    assert pack_nibbles(got).tobytes().hex() == nv["packed"]
    back = decode_nvfp4(got, scales, global_scale)
    assert np.array_equal(back, E2M1.decode(got) * (E4M3.decode(scales) / global_scale))


def test_blocks_of_zeros() -> None:
    zeros = np.zeros((2, 32), np.float32)
    got, scales = encode_mxfp4(zeros)
    assert not got.any()
    assert not scales.any()
    assert not decode_mxfp4(got, scales).any()
    got, scales, global_scale = encode_nvfp4(zeros)
    assert (got.any(), scales.any(), global_scale) == (False, False, 1.0)
    assert not decode_nvfp4(got, scales, global_scale).any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: E4M3.decode(np.zeros(2, np.int32)), ["E4M3", "uint8", "int32"]),
        (lambda: E8M0.decode(np.zeros(2, np.float32)), ["E8M0", "uint8", "float32"]),
        (lambda: E2M1.decode(np.array([16], np.uint8)), ["E2M1", "4 bits", "16"]),
        (lambda: E2M1.encode(np.array([1, np.nan, np.nan])), ["E2M1", "no NaN", "2"]),
        (lambda: encode_mxfp4(np.zeros((2, 48))), ["MXFP4", "32", "48"]),
        (lambda: encode_nvfp4(np.zeros(8)), ["NVFP4", "16", "8"]),
        (lambda: encode_nvfp4(np.full(16, np.inf)), ["NVFP4", "16 numbers", "not finite"]),
        (lambda: pack_nibbles(np.zeros(3, np.uint8)), ["3", "even"]),
        (lambda: pack_nibbles(np.array([1, 16], np.uint8)), ["15", "16"]),
    ],
)
def test_what_is_refused(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)

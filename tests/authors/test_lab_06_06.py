"""Lab 06-06: what it gives; its answers asked again, and many more floats, of ml_dtypes and vLLM."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_module
from mini_vllm.layers.quantization import float_formats

ROOT = Path(__file__).resolve().parents[2]
[LAB] = (ROOT / "phase-06-quantization" / "labs").glob("lab-06-*")
FORMATS = ("E4M3", "E5M2", "E2M1", "E8M0")
ASK = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("record", sys.argv[1])
record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)
print()
print(json.dumps({"MXFP4": record.ask_mxfp4(), "NVFP4": record.ask_nvfp4()}))
"""


support = load_module(LAB / "support.py", "lab_06_06_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    """What the starter gives, on what the solution writes."""
    starter = load_module(LAB / "starter.py", "lab_06_06_starter")
    solution = load_module(LAB / "solution.py", "lab_06_06_solution")
    starter.largest_code = solution.largest_code  # type: ignore[attr-defined]
    starter.encode_magnitude = solution.encode_magnitude  # type: ignore[attr-defined]
    return starter


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return load_module(LAB / "record.py", "lab_06_06_record")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((LAB / "answers.json").read_text(encoding="utf-8"))
    return kept


@pytest.mark.parametrize("name", FORMATS)
def test_ml_dtypes_says_so(record: ModuleType, answers: dict[str, Any], name: str) -> None:
    pytest.importorskip("ml_dtypes")
    assert record.ask_ml_dtypes(name) == answers[name]


@pytest.mark.parametrize("name", FORMATS)
def test_every_65536th_float(record: ModuleType, name: str) -> None:
    """All upper halves of a float32 with six lower ones: 393,216 floats, every exponent, NaNs of any kind."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    fmt = getattr(float_formats, name)
    upper = np.arange(65536, dtype=np.uint32) << 16
    lower = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    x = np.concatenate([upper | bits for bits in lower]).view(np.float32)
    if name == "E2M1":  # without a NaN ml_dtypes makes zeros of them, and mini_vllm an error
        x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        want = x.astype(getattr(ml_dtypes, record.NAMES[name])).view(np.uint8)
    assert np.array_equal(fmt.encode(x, saturate=False), want)


@pytest.mark.vllm
def test_vllm_and_compressed_tensors_say_so(answers: dict[str, Any]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(LAB / "record.py")],
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    asked = json.loads(done.stdout.strip().splitlines()[-1])
    for name in ("MXFP4", "NVFP4"):
        assert asked[name] == answers[name]


def encoded(lab: ModuleType, name: str, x: float, saturate: bool) -> Any:
    """What `encode` gives; a ValueError where none is due is a wrong answer, not a crash."""
    try:
        return lab.encode(getattr(lab, name), x, saturate)
    except (ValueError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"


def told(lab: ModuleType, name: str, got: Any) -> str:
    """A code with its fields and its number, as the recorded table has it."""
    fmt = getattr(lab, name)
    size = 2 ** (1 + fmt.exponent_bits + fmt.mantissa_bits)
    if not isinstance(got, int) or not 0 <= got < size:
        return f"{got!r}, which is no code of {name}"
    number = support.floats(support.ANSWERS[name]["decode"])[got]
    return f"{int(got)} ({support.bits(fmt, got)}, {number:.9g})"


@pytest.mark.parametrize("name", ["E4M3", "E5M2", "E2M1"])
def test_every_code_has_its_number(lab: ModuleType, name: str) -> None:
    """All codes, to the bit, as ml_dtypes reads them."""
    fmt = getattr(lab, name)
    for code, want in enumerate(support.floats(support.ANSWERS[name]["decode"])):
        got = lab.decode(fmt, code)
        assert support.same(got, want), (
            f"{name}: code {code} is {support.bits(fmt, code)}, that is {support.show(want)}; yours {got}"
        )


def test_nan_is_no_large_number(lab: ModuleType) -> None:
    """It stays NaN, saturating or not, and E2M1 has no place for it."""
    negative = math.copysign(math.nan, -1.0)
    for name, x, want in (
        ("E4M3", math.nan, 127),
        ("E5M2", math.nan, 126),
        ("E4M3", negative, 255),
        ("E5M2", negative, 254),
    ):
        what = "NaN" if x is math.nan else "NaN with the sign bit set, which inf - inf may give,"
        for saturate in (True, False):
            got = encoded(lab, name, x, saturate)
            number = isinstance(got, int) and got & 127 <= {"E4M3": 126, "E5M2": 124}[name]
            assert got == want, (
                f"{name}, saturate={saturate}: {what} is {told(lab, name, want)}, yours "
                f"{told(lab, name, got)}"
                + (". As a number it hides that something broke" if number else "")
            )
    for saturate in (True, False):
        try:
            got = lab.encode(lab.E2M1, math.nan, saturate)
        except ValueError:
            continue
        raise AssertionError(
            f"E2M1, saturate={saturate}: all 16 codes are numbers, so NaN is a ValueError; yours: code {got}"
        )


def test_every_scale(lab: ModuleType) -> None:
    """E8M0: 255 powers of two, and NaN."""
    for code, want in enumerate(support.floats(support.ANSWERS["E8M0"]["decode"])):
        got = lab.decode_scale(code)
        assert support.same(got, want), f"E8M0 code {code} is {want}, yours {got}"


def test_the_first_code_is_in_the_low_half(lab: ModuleType) -> None:
    """Two codes a byte."""
    got = lab.pack([1, 2, 15, 0, 7, 8])
    assert got == bytes([0x21, 0x0F, 0x87]), (
        f"codes 1 and 2 are the byte 0x21, 15 and 0 are 0x0f, 7 and 8 are 0x87; yours {bytes(got).hex(' ')}"
    )

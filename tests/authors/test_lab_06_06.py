"""Lab 06-06: its answers asked again, and many more floats, where ml_dtypes and vLLM are installed."""

from __future__ import annotations

import json
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

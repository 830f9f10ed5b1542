"""The core types that CI loops over are those that the processor can run, and each is really run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.blas_core_types import NEEDS, read_architectures, select_types

CPUINFO = Path("/proc/cpuinfo")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "blas_core_types.py"
AVX2 = {"SSE42", "AVX", "F16C", "FMA3", "AVX2"}
SKX = {"AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512_SKX"}


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (set(), []),
        ({"NEON", "ASIMD", "SVE"}, []),
        ({"SSE42"}, []),
        ({"SSE42", "AVX"}, ["Sandybridge"]),
        (AVX2 - {"FMA3"}, ["Sandybridge"]),
        (AVX2, ["Sandybridge", "Haswell", "Zen"]),
        (AVX2 | {"AVX512F", "AVX512CD"}, ["Sandybridge", "Haswell", "Zen"]),  # Xeon Phi
        (AVX2 | SKX, ["Sandybridge", "Haswell", "Zen", "SkylakeX"]),
    ],
)
def test_a_type_needs_all_of_its_instructions(features: set[str], expected: list[str]) -> None:
    assert select_types(features) == expected


def test_every_type_printed_is_the_one_that_runs() -> None:
    """Also where the caller has chosen a type already, as CI's loop does."""
    child = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=os.environ | {"OPENBLAS_CORETYPE": "Nehalem"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    printed = child.stdout.splitlines()
    assert printed == [name for name in NEEDS if name in printed], "in order, each once"
    for name in printed:
        assert name in read_architectures(name)
    flags = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
    if platform.machine().lower() not in ("x86_64", "amd64"):
        assert printed == []
    elif "avx512f" not in flags:
        assert "SkylakeX" not in printed
    if {"avx2", "fma"} <= flags and "Haswell" in read_architectures("Haswell"):
        assert "Haswell" in printed


def test_a_name_that_openblas_does_not_know_is_not_what_runs() -> None:
    """It runs another type without a word, so a misspelt one in CI's list would test nothing."""
    assert "Haswel" not in read_architectures("Haswel")

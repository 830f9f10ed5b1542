"""Lab 05-06: correct runners that are written otherwise are accepted, as strict as the stand-in is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "phase-05-cuda-graphs" / "labs" / "lab-06-capture-the-engine"
RUNNERS = [
    p for p in sorted((ROOT / "tests/authors/graph_runners").glob("*.py")) if p.stem != "lab"
]
DEVICES = ["not gpu", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.mark.torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("runner", RUNNERS, ids=lambda path: path.stem)
def test_a_correct_runner_is_accepted(runner: Path, device: str) -> None:
    """Every test of the lab passes, whatever the runner looks like inside."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LAB_IMPL": str(runner)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        device,
        str(LAB),
    ]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout.splitlines()[-1]


def test_there_are_six_of_them() -> None:
    assert len(RUNNERS) == 6

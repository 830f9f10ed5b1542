"""Benchmarks without a GPU: the tables that a dry run prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def dry_run(module: str, *arguments: str) -> list[str]:
    """What a benchmark prints without a GPU, in lines. It must end well and leave nothing out."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        f"benchmarks.{module}",
        *arguments,
        "--dry-run",
    ]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-1000:]
    assert "left out" not in ran.stderr
    assert " us" not in ran.stdout, "a dry run times nothing"
    return ran.stdout.strip().splitlines()

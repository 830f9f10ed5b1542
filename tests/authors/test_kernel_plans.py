"""Every plan that `plan_prefill` makes for common shapes: no spills, and tensor cores where there are any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.torch
@pytest.mark.triton
def test_no_plan_of_the_prefill_kernel_spills() -> None:
    from course.kernels.compiled import SHARED

    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [sys.executable, "-W", "ignore", str(HERE / "kernel_plans.py")]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-1000:]
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(rows) >= 30
    for row in rows:
        assert row["spills"] == row["stack"] == 0, row
        assert row["shared"] <= SHARED[row["GPU"]], row
        multiplied_there = row["GPU"] >= 80 and row["dtype"] != "float32"
        assert (row["tensor core"] > 0) == multiplied_there, row

"""`benchmarks/quantization.py` without a GPU: every leg runs and is right, and the paper adds up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quantization import BATCHES, LAYERS, LEGS, Shape, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.vllm
def test_every_leg_runs_and_is_right() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.quantization", "--dry-run"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-1000:]
    assert "left out" not in ran.stderr
    head, *rows = ran.stdout.strip().splitlines()
    assert head.endswith("  ".join(f"{leg} error" for leg in LEGS)), head
    assert " us" not in head, "a dry run times nothing"
    assert len(rows) == 4
    for row in rows:
        assert all(float(error) < 2e-3 for error in row.split()[-len(LEGS) :]), row


@pytest.mark.torch
def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--dry-run needs none"):
        main([])


def test_the_paper_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    """o_proj of Llama-3.1-8B and one row: 4.125 bits a weight, 2 bytes for each number of x and result."""
    one = Shape("o_proj", *LAYERS["o_proj"], 1)
    assert one.least_bytes(16) == 2 * 4096 * 4096 + 4 * 4096
    assert one.least_bytes(4) == 4096 * 4096 * 4.125 / 8 + 4 * 4096
    assert one.intensity(16) == pytest.approx(1, rel=1e-3)
    assert main(["--paper", "--layer", "o_proj"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [str(rows) for rows in BATCHES]


def test_the_layers_are_those_of_llama_8b() -> None:
    """32 of each hold what the linears of the layers hold."""
    assert 32 * sum(outputs * inputs for outputs, inputs in LAYERS.values()) == 6_979_321_856

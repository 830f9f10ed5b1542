"""`benchmarks/quantization.py` without a GPU: every leg runs and is right, and the paper adds up."""

from __future__ import annotations

import pytest
from benchmark_helpers import dry_run

from benchmarks.quantization import BATCHES, LAYERS, LEGS, Shape, main


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.vllm
def test_every_leg_runs_and_is_right() -> None:
    head, *rows = dry_run("quantization")
    assert head.endswith("  ".join(f"{leg} error" for leg in LEGS)), head
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
